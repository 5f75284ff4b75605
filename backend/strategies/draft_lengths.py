"""How many tokens a round drafts, from a column's settings."""

from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength, FixedDraftLength
from backend.strategies.declaration import DrafterInputs

#: Who names a size wants that size.
NAMED_SIZE = {"auto": False}


def draft_length(inputs: DrafterInputs) -> DraftLength:
    """Of the settings "auto" and "k"."""
    k, draft = inputs.values["k"], inputs.draft
    if not inputs.values["auto"]:
        return FixedDraftLength(k)
    seconds = 0.0 if draft is None else draft.seconds
    return AdaptiveDraftLength(inputs.costs, seconds, k, branches=inputs.target.capabilities.tree)
