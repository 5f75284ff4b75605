"""How many tokens a round drafts, from a column's settings."""

from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength, FixedDraftLength
from backend.strategies.declaration import DrafterInputs

#: Who names a size wants that size.
NAMED_SIZE = {"auto": False}


def draft_length(inputs: DrafterInputs, draft: float) -> DraftLength:
    """Of the settings "auto" and "k"; `draft` is what a call of the draft takes in seconds."""
    k = inputs.values["k"]
    if not inputs.values["auto"]:
        return FixedDraftLength(k)
    return AdaptiveDraftLength(inputs.costs, draft, k, branches=inputs.target.capabilities.tree)
