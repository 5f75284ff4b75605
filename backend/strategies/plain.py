"""Strategies that guess nothing: the baseline, the one without a cache, the plain one under a
grammar, and two that show what KV reuse saves between the slots of a program.
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
