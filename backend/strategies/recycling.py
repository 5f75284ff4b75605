"""Token recycling as a strategy."""

from backend.drafters.draft_length import DraftLength
from backend.drafters.recycling import TokenRecycling
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy, Values
from backend.strategies.equivalents import RECYCLED, Equivalent, Lookup, Nothing
from backend.strategies.settings import NAMED_SIZE, Flag, WholeNumber
from backend.types import ModelSpec


def build(inputs: DrafterInputs) -> TokenRecycling:
    return recycling_of(inputs, inputs.draft_length())


def recycling_of(inputs: DrafterInputs, length: DraftLength) -> TokenRecycling:
    chain = not inputs.target.capabilities.tree
    return TokenRecycling(length, chain=chain)


def equivalent(values: Values, _target: ModelSpec) -> Equivalent:
    return Nothing(RECYCLED, Lookup(min(values["k"], 8), 2))


RECYCLING = Strategy(
    "recycling",
    "Token recycling",
    "Remembers which tokens the model found likely after each token, and guesses from them. No "
    "draft model.",
    settings=(
        Flag("auto", "Auto", "Check the fastest number of guesses, at most k.", default=True),
        WholeNumber("k", "k", "Tokens guessed per pass, as a tree.", 24, 1, 32, fixes=NAMED_SIZE),
    ),
    gist="Guesses from earlier passes",
    build=build,
    equivalent=equivalent,
    verified=("", "k=12"),
    candidates=(Candidate(),),
)
