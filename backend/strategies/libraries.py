"""Libraries' own decoding as strategies."""

from backend.libraries.transformers import NO_DRAFT
from backend.libraries.transformers import TRANSFORMERS as TRANSFORMERS_LIBRARY
from backend.strategies.declaration import Strategy
from backend.strategies.settings import ModelChoice, WholeNumber

LOOKUP_TOKENS = WholeNumber(
    "lookup", "Lookup", "Tokens copied by the library's prompt lookup; 0: none.", 0, 0, 64
)
DRAFT_TOKENS = WholeNumber("k", "k", "Tokens that the draft guesses per pass.", 4, 1, 32)

TRANSFORMERS = Strategy(
    "transformers",
    "transformers",
    "What generate() of transformers does: plain, with its prompt lookup, or with a draft.",
    gist="generate(), as people deploy it",
    settings=(
        LOOKUP_TOKENS,
        ModelChoice(
            "draft",
            "Draft",
            "A smaller model that guesses; its tokenizer may differ.",
            NO_DRAFT,
            ((NO_DRAFT, "none"),),
        ),
        DRAFT_TOKENS,
    ),
    keeps_text=lambda _values: False,
    verified=(),
    library=TRANSFORMERS_LIBRARY,
)
