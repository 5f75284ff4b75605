"""Prompt lookup as a strategy."""

from backend.drafters.prompt_lookup import PromptLookup, latest
from backend.strategies.declaration import Built, Candidate, DrafterInputs, Strategy, Values
from backend.strategies.draft_lengths import NAMED_SIZE, draft_length
from backend.strategies.equivalents import Equivalent, Lookup
from backend.strategies.settings import Flag, WholeNumber
from backend.types import ModelSpec

#: The usual longest ending that is looked up, and how many continuations are tried.
NGRAM, BRANCHES = 3, 2


def build(inputs: DrafterInputs) -> Built:
    length = draft_length(inputs, 0.0)
    drafter = PromptLookup(
        length,
        inputs.values["ngram"],
        inputs.values["branches"] if inputs.target.capabilities.tree else 1,
        latest(inputs.texts),
    )
    return Built(drafter, inputs.session)


def equivalent(values: Values, _target: ModelSpec) -> Equivalent:
    return Lookup(values["k"], values["ngram"])


LOOKUP = Strategy(
    "lookup",
    "Prompt lookup",
    "Speculation without a model: what followed the last occurrence of the text's own "
    "ending is proposed again. Strong where answers quote.",
    settings=(
        Flag("auto", "Auto", "Copy only as much as pays here, at most K.", default=True),
        WholeNumber("k", "K", "Tokens copied after a match.", 8, 1, 32, fixes=NAMED_SIZE),
        WholeNumber(
            "ngram", "n-gram", "Longest ending that is looked up; shorter ones follow.", NGRAM, 1, 8
        ),
        WholeNumber(
            "branches", "Branches", "Occurrences whose continuations are tried.", BRANCHES, 1, 4
        ),
    ),
    build=build,
    equivalent=equivalent,
    verified=("", "k=10,ngram=4,branches=4"),
    candidates=(Candidate("branches=1", longest=16), Candidate()),
)
