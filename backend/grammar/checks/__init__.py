"""Refuses grammars that would do harm: a scan before parsing, and a proof that every text can end.

May import `grammar.lark.text`, `grammar.messages` and `grammar.sources`.
"""
