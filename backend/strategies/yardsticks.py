"""Strategies that programs are compared with: what KV reuse between slots saves."""

from backend.strategies.declaration import Strategy

WITHOUT_REUSE = Strategy(
    "restart",
    "Without reuse",
    "KV reuse that forgets its cache before every slot of a program, as if each were a "
    "call of its own. Without slots it is KV reuse.",
    restart=True,
    verified=(),
)

ONE_GENERATION = Strategy(
    "single",
    "One generation",
    "A program's text is not fed but generated, all of it in one go and as long as the "
    "program would be. Without slots it is KV reuse.",
    single=True,
    verified=(),
)
