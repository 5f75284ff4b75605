"""Lark grammars: taken apart, linked with what they import, and whether every text can end."""
