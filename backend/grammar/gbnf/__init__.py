"""Turns llama.cpp's GBNF into Lark, with lexemes as long as can be shown to be exact."""
