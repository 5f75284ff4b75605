"""Runs prompt programs: text with slots, parsed, fed and decoded slot by slot.

May import `decoding`, `grammar` (sources and Lark's spelling), `events`, `types` and `errors`.
"""
