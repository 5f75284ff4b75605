"""How a column's drafter is put together from its settings and what there is to run it with."""

from collections.abc import Sequence
from dataclasses import dataclass

from backend.costs.pass_costs import PassCosts
from backend.decoding.drafter import Drafter, NullDrafter
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength, FixedDraftLength
from backend.drafters.draft_model import DraftModel
from backend.drafters.hybrid import CalibratedDrafter, Hybrid
from backend.drafters.lookahead import Lookahead
from backend.drafters.lookahead_plan import Setting, plan_lookahead
from backend.drafters.prompt_lookup import PromptLookup, latest
from backend.drafters.trained_head import TrainedHead
from backend.engines.base import Engine, Session
from backend.engines.hidden_states import HiddenStateSession
from backend.errors import DerbyError
from backend.heads.base import Head
from backend.strategies.settings import (
    HYBRID,
    Drafting,
    DraftModelDrafting,
    LookaheadDrafting,
    LookupDrafting,
)


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    """What a column's drafter may be made of.

    `head` is the target's trained head and `draft` an open draft model; None where there is none.
    `texts` are the visitor's earlier ones, the latest last.
    """

    target: Engine
    costs: PassCosts
    sampler: Sampler
    head: Head | None
    draft: "OpenDraft | None"
    texts: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class OpenDraft:
    """A draft model's session, the tokens that it holds, and the seconds of a pass over one row."""

    session: Session
    held: Sequence[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Built:
    """A drafter, the target's session as it must be run with it, and what a call of the draft
    costs in seconds.
    """

    drafter: Drafter
    session: Session
    seconds: float = 0.0


def build_drafter(drafting: Drafting, session: Session, given: DrafterInputs) -> Built:
    """Raises DerbyError for what the target cannot do, and for a draft that does not fit it."""
    match drafting:
        case LookupDrafting():
            draft_length = _draft_length(drafting, given, 0.0)
            return Built(_lookup(drafting, draft_length, given), session)
        case LookaheadDrafting():
            return Built(_lookahead(drafting, given), session)
        case DraftModelDrafting(draft=draft):
            return _speculative(drafting, draft, session, given)
        case _:
            return Built(NullDrafter(), session)


def _draft_length(
    drafting: LookupDrafting | DraftModelDrafting, given: DrafterInputs, draft: float
) -> DraftLength:
    if not drafting.auto:
        return FixedDraftLength(drafting.k)
    return AdaptiveDraftLength(
        given.costs, draft, drafting.k, branches=given.target.capabilities.tree
    )


def _lookup(
    drafting: LookupDrafting, draft_length: DraftLength, given: DrafterInputs
) -> PromptLookup:
    branches = drafting.branches if given.target.capabilities.tree else 1
    return PromptLookup(draft_length, drafting.ngram, branches, latest(given.texts))


def _lookahead(drafting: LookaheadDrafting, given: DrafterInputs) -> Drafter:
    if not given.target.capabilities.tree:
        raise DerbyError(
            f"Lookahead needs tree attention, which {given.target.spec} does not have."
        )
    seed = given.sampler.sampling.seed

    def made(sizes: Setting) -> Lookahead:
        return Lookahead(
            sizes.window, sizes.level, sizes.guesses, seeded=drafting.seeded, seed=seed
        )

    if not drafting.auto:
        return made(Setting(drafting.window, drafting.level, drafting.guesses))
    return plan_lookahead(given.costs, "decline", given.target.spec.name, made)


def _speculative(
    drafting: DraftModelDrafting, draft: str, session: Session, given: DrafterInputs
) -> Built:
    tokenizer = given.target.tokenizer
    if given.draft is not None:
        seconds, opened = given.draft.seconds, given.draft
        draft_length = _draft_length(drafting, given, seconds)
        model = DraftModel(
            opened.session, given.sampler, draft_length, tokenizer.eos_ids, opened.held
        )
        return Built(_behind_lookup(model, draft, draft_length, given), session, seconds)
    if given.head is None:
        raise DerbyError(f"{given.target.spec} has no draft {draft!r}: choose int4 or a model.")
    seconds, tapped = given.head.seconds, HiddenStateSession(session)
    draft_length = _draft_length(drafting, given, seconds)
    head = TrainedHead(
        given.head, tapped, given.sampler, draft_length, tokenizer.eos_ids, tokenizer.vocab_size
    )
    return Built(_behind_lookup(head, draft, draft_length, given), tapped, seconds)


def _behind_lookup(
    drafter: CalibratedDrafter, draft: str, draft_length: DraftLength, given: DrafterInputs
) -> Drafter:
    if draft != HYBRID:
        return drafter
    return Hybrid(_lookup(LookupDrafting(), draft_length, given), drafter, draft_length)
