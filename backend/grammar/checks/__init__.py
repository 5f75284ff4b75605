"""Refuses grammars that would do harm: every text must be able to end, and schemas must be held."""
