"""Reads Lark grammars as tokens and definitions, and links files that import one another.

May import `grammar.messages` and `grammar.sources`.
"""
