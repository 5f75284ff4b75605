"""Suffix decoding as a strategy."""

from backend.drafters.draft_length import DraftLength
from backend.drafters.suffix import SuffixDecoding
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy, Values
from backend.strategies.equivalents import SUFFIX_DECODING, Equivalent, Lookup, Nothing
from backend.strategies.settings import NAMED_SIZE, Flag, WholeNumber
from backend.types import ModelSpec


def build(inputs: DrafterInputs) -> SuffixDecoding:
    return suffix_of(inputs, inputs.draft_length())


def suffix_of(inputs: DrafterInputs, length: DraftLength) -> SuffixDecoding:
    chain = not inputs.target.capabilities.tree
    return SuffixDecoding(length, chain=chain)


def equivalent(values: Values, _target: ModelSpec) -> Equivalent:
    return Nothing(SUFFIX_DECODING, Lookup(values["k"], 3))


SUFFIX = Strategy(
    "suffix",
    "Suffix decoding",
    "Finds every earlier occurrence of the text's last words, counts what came next each time, and "
    "guesses the likely continuations. No draft model.",
    settings=(
        Flag("auto", "Auto", "Check the fastest number of guesses.", default=True),
        WholeNumber("k", "k", "Tokens guessed per pass, at most.", 16, 1, 32, fixes=NAMED_SIZE),
    ),
    gist="Guesses what most often came next",
    build=build,
    equivalent=equivalent,
    verified=("", "k=8"),
    candidates=(Candidate(),),
)
