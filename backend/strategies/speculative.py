"""Speculative decoding as a strategy: a trained head or a draft model, alone or behind lookup."""

from dataclasses import replace
from pathlib import Path

from backend.decoding.sampling import COLDEST, DraftSampler, IndependentSampler
from backend.decoding.seams import Drafter
from backend.decoding.verification import KEYED, DistributionVerifier
from backend.drafters.network_drafter import Hybrid, NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.base import Engine, no_trained_draft
from backend.engines.heads.file import HEAD_SUFFIX, head_for
from backend.engines.registry import all_precisions, copy_spec
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy, Values, Weights
from backend.strategies.equivalent import Equivalent
from backend.strategies.lookup import NGRAM
from backend.strategies.settings import AUTO, K_HELP, NAMED_SIZE, Choice, ModelChoice, WholeNumber
from backend.types import ModelSpec

#: Drafts that are no model's name: the trained head, and prompt lookup plus the same.
TRAINED, HYBRID = "trained", "hybrid"

#: What may be promised of the text: that it is the plain one's, or that its distribution is.
TEXT, DISTRIBUTION = "text", "distribution"

#: The copy of the target that drafts where no head was trained.
USUAL_COPY = "int4"


def weights(values: Values, target: Engine) -> Weights:
    """The trained draft or the model that `draft` stands for. Raises DerbyError where none was
    trained.
    """
    draft: str = values["draft"]
    head = _head(draft, target.spec)
    if head is not None and target.guesses != "none":
        return head
    if draft == TRAINED or (head is not None and draft != HYBRID):
        raise no_trained_draft(target.spec)
    if draft == HYBRID or draft in all_precisions():
        copy = USUAL_COPY if draft == HYBRID else draft
        return copy_spec(target.spec, copy)
    return replace(target.spec, name=draft)


def _head(draft: str, target: ModelSpec) -> Path | None:
    if draft.endswith(HEAD_SUFFIX):
        return Path(draft).expanduser()
    return head_for(target) if draft in (TRAINED, HYBRID) else None


def build(inputs: DrafterInputs) -> Drafter:
    length, tokenizer = inputs.draft_length(), inputs.target.tokenizer
    if inputs.draft is None:
        # A copy of the target that cannot be had: prompt lookup needs none.
        missing = (f"prompt lookup alone: {inputs.missing}",)
        return PromptLookup(length, NGRAM, missing)
    drafter = NetworkDrafter(
        inputs.draft,
        _sampler(inputs),
        length,
        tokenizer.eos_ids,
        tokenizer.vocab_size,
        KEYED if keeps_text(inputs.values) else DistributionVerifier(),
    )
    if inputs.values["draft"] != HYBRID:
        return drafter
    return Hybrid(PromptLookup(length, NGRAM), drafter, length)


def keeps_text(values: Values) -> bool:
    return values["promise"] == TEXT


def _sampler(inputs: DrafterInputs) -> DraftSampler:
    """What the draft's tokens are chosen by: at temperature 0 there is nothing to draw."""
    sampling = inputs.sampler.sampling
    if keeps_text(inputs.values) or sampling.temperature < COLDEST:
        return inputs.sampler
    return IndependentSampler(sampling)


def equivalent(values: Values) -> Equivalent:
    draft, k = values["draft"], values["k"]
    if draft in (TRAINED, HYBRID) or draft.endswith(HEAD_SUFFIX):
        return Equivalent(missing="draft of this kind")
    return Equivalent(draft=draft, k=k)


SPECULATIVE = Strategy(
    "speculative",
    "Speculative",
    "A draft guesses up to k tokens, and the model checks them all in one pass.",
    gist=lambda values: "Lookup plus draft" if values["draft"] == HYBRID else "A draft guesses",
    settings=(
        AUTO,
        WholeNumber("k", "k", K_HELP, 8, 1, 16, fixes=NAMED_SIZE),
        ModelChoice(
            "draft",
            "Draft",
            "hybrid (lookup plus trained), trained, a copy of the model, or another model's name.",
            HYBRID,
            (
                (HYBRID, "hybrid"),
                (TRAINED, "trained"),
                ("int4", "int4 copy"),
                ("int8", "int8 copy"),
            ),
        ),
        Choice(
            "promise",
            "Promise",
            "The text of KV reuse, or another that is just as likely, with more guesses accepted.",
            TEXT,
            ((TEXT, "same text"), (DISTRIBUTION, "same distribution")),
        ),
    ),
    build=build,
    weights=weights,
    equivalent=equivalent,
    keeps_text=keeps_text,
    verified=(
        "",
        "draft=trained,k=1",
        "draft=trained,k=4",
        "draft=int4,k=3",
        "draft=int4,k=8",
        "promise=distribution",
    ),
    candidates=(
        Candidate("draft=trained", longest=8),
        Candidate("draft=int4", longest=8),
        Candidate(),
    ),
)
