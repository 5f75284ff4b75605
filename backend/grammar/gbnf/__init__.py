"""Turns llama.cpp's GBNF into Lark, with lexemes as long as can be shown to be exact.

May import `grammar.messages` and the fixpoints of `grammar.checks`.
"""
