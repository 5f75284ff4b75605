"""Strategies that guess nothing: the baseline, the one without a cache, and the plain one under a
grammar.
"""

from backend.strategies.declaration import Strategy
from backend.strategies.equivalent import Equivalent

STATELESS = Strategy(
    "stateless",
    "Stateless",
    "Computes the whole text again for every token, without a cache.",
    gist="Rereads the whole text",
    equivalent=lambda _values: Equivalent(missing="cacheless decoding", instead="KV reuse"),
    keeps_cache=False,
)

KV_REUSE = Strategy(
    "kv",
    "KV reuse",
    "Ordinary decoding: a cache keeps the earlier tokens, and each pass computes one.",
    gist="Ordinary decoding, cached",
)

GRAMMAR = Strategy(
    "grammar",
    "Grammar",
    "Chooses only tokens that a grammar allows, and fills in those that it forces.",
    gist="Keeps to {grammar}",
    grammar="person",
    equivalent=lambda _values: Equivalent(
        missing="forced tokens", instead="KV reuse with its grammar"
    ),
    verified=(),
)
