"""Strategies that guess nothing: the baseline, the one without a cache, the plain one under a
grammar, and two that show what KV reuse saves between the slots of a program.
"""

from backend.strategies.declaration import Strategy
from backend.strategies.equivalent import Equivalent

STATELESS = Strategy(
    "stateless",
    "Stateless",
    "Computes the whole text again for every token, without a cache. Shows what the cache saves.",
    gist="Rereads everything for each token",
    equivalent=lambda _values: Equivalent(missing="decoding without a cache", instead="KV reuse"),
    keeps_cache=False,
)

KV_REUSE = Strategy(
    "kv",
    "KV reuse",
    "Keeps the keys and values of earlier tokens in a cache, so each pass computes one token. The "
    "baseline of every speed-up.",
    gist="Ordinary decoding, cached",
)

GRAMMAR = Strategy(
    "grammar",
    "Grammar",
    "Chooses only tokens that a grammar allows, so the text always parses. If the grammar allows "
    "only one continuation, that is filled in.",
    gist="Keeps to {grammar}",
    grammar="person",
    verified=(),
)

NO_REUSE = Strategy(
    "no_reuse",
    "No reuse",
    "KV reuse that empties its cache before every slot of a program, like separate calls. Without "
    "slots it is KV reuse.",
    gist="Forgets its cache before every slot",
    restart=True,
    verified=(),
)

SINGLE = Strategy(
    "single",
    "Single generation",
    "Generates a whole program at once, its fixed text included. Without slots it is KV reuse.",
    gist="Writes the program in one go",
    single=True,
    verified=(),
)
