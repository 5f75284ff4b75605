"""Prompt lookup as a strategy."""

from backend.drafters.draft_length import DraftLength
from backend.drafters.prompt_lookup import PromptLookup
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy
from backend.strategies.equivalent import Equivalent
from backend.strategies.settings import NAMED_SIZE, Flag, WholeNumber

#: The usual longest ending that is looked up, and how many continuations are tried.
NGRAM, BRANCHES = 3, 2


def build(inputs: DrafterInputs) -> PromptLookup:
    ngram, branches = inputs.values["ngram"], inputs.values["branches"]
    return lookup_of(inputs, inputs.draft_length(), ngram, branches)


def lookup_of(
    inputs: DrafterInputs,
    length: DraftLength,
    ngram: int = NGRAM,
    branches: int = BRANCHES,
    declined: tuple[str, ...] = (),
) -> PromptLookup:
    """`declined`: see Decision."""
    return PromptLookup(length, ngram, branches, declined)


LOOKUP = Strategy(
    "lookup",
    "Prompt lookup",
    "Finds the last few words earlier in the text and guesses what came next.",
    gist="Copies from the text so far",
    settings=(
        Flag("auto", "Auto", "Copy the fastest number of tokens, at most k.", default=True),
        WholeNumber("k", "k", "Tokens copied after a match.", 8, 1, 32, fixes=NAMED_SIZE),
        WholeNumber(
            "ngram", "n-gram", "Last tokens to look up, at most; fewer are tried too.", NGRAM, 1, 8
        ),
        WholeNumber(
            "branches", "Branches", "Earlier occurrences that are tried at once.", BRANCHES, 1, 4
        ),
    ),
    build=build,
    equivalent=lambda values: Equivalent(lookup=values["k"]),
    verified=("", "k=10,ngram=4,branches=4"),
    candidates=(Candidate("branches=1", longest=16), Candidate()),
)
