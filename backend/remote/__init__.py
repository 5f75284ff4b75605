"""Races servers: columns whose text an OpenAI-compatible server streams.

`server` says where one listens, `lock` lets one column in at a time, `stream` reads what it sends,
`chunk` what each message says, `counters` what it counts of all requests; `lane` runs a column.
Nothing that a server sends is trusted.
"""
