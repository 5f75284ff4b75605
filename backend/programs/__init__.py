"""Runs prompt programs: text with slots, parsed, fed and decoded slot by slot."""
