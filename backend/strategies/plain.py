"""Strategies that propose nothing: the baseline, its opposite, a grammar's plain column, and two
that show what KV reuse saves between the slots of a program.
"""

from backend.strategies.declaration import Strategy

STATELESS = Strategy(
    "stateless",
    "Stateless",
    "No cache: the whole text is computed again for every token. What a server that keeps "
    "nothing between calls would do, and what the cache saves.",
    gist="Rereads everything for each token",
    keeps_cache=False,
    limit=32,
    verified=("limit=24",),
)

KV_REUSE = Strategy(
    "kv",
    "KV reuse",
    "Keys and values of earlier tokens stay in a cache, so a step computes one row. The "
    "baseline that every speed-up refers to.",
    gist="Keeps its cache, one token per pass",
)

GRAMMAR = Strategy(
    "grammar",
    "Grammar",
    "Only tokens that a grammar allows can be chosen, so the text always parses. Where "
    "one continuation is left, it is proposed instead of waited for.",
    gist="Writes only what its grammar allows",
    grammar="person",
    verified=(),
)

WITHOUT_REUSE = Strategy(
    "restart",
    "Without reuse",
    "KV reuse that forgets its cache before every slot of a program, as if each were a "
    "call of its own. Without slots it is KV reuse.",
    gist="Forgets its cache before every slot",
    restart=True,
    verified=(),
)

ONE_GENERATION = Strategy(
    "single",
    "One generation",
    "A program's text is not fed but generated, all of it in one go and as long as the "
    "program would be. Without slots it is KV reuse.",
    gist="Writes the program in one go",
    single=True,
    verified=(),
)
