"""Races servers: columns whose text an OpenAI-compatible server streams.

`server` says where one listens, `stream` reads what it sends, `reply` what each message says,
`lane` runs a column. Nothing that a server sends is trusted.

May import: decoding, events, types, errors.
"""
