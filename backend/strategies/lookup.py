"""Prompt lookup as a strategy."""

from backend.drafters.prompt_lookup import PromptLookup
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy
from backend.strategies.equivalent import Equivalent
from backend.strategies.settings import AUTO, K_HELP, NAMED_SIZE, WholeNumber

#: The usual longest ending that is looked up.
NGRAM = 3


def build(inputs: DrafterInputs) -> PromptLookup:
    return PromptLookup(inputs.draft_length(), inputs.values["ngram"])


LOOKUP = Strategy(
    "lookup",
    "Prompt lookup",
    "Finds the last words earlier in the text and guesses what came next there.",
    gist="Copies earlier text",
    settings=(
        AUTO,
        WholeNumber("k", "k", K_HELP, 8, 1, 32, fixes=NAMED_SIZE),
        WholeNumber("ngram", "n-gram", "Tokens of the longest ending looked up.", NGRAM, 1, 8),
    ),
    build=build,
    equivalent=lambda values: Equivalent(lookup=values["k"]),
    verified=("", "k=10,ngram=4"),
    candidates=(Candidate(longest=16), Candidate()),
)
