"""Serves a column as an OpenAI-compatible server does: completions over HTTP.

`requests` reads what a client sent, of which nothing is trusted; `models` says which column a
model's name means, `queue` runs one race after another, `completion` makes an answer of its events,
`app` is the server without its port, `server` the port.
"""
