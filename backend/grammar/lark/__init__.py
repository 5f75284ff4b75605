"""Reads Lark grammars as tokens and definitions, and links files that import one another."""
