"""Speculative decoding as a strategy: a trained head or a draft model, alone or behind lookup."""

from dataclasses import replace
from pathlib import Path

from backend.decoding.drafter import Drafter
from backend.decoding.sampling import COLDEST, DraftSampler, IndependentSampler
from backend.decoding.verification import KEYED, DistributionVerifier
from backend.drafters.hybrid import Hybrid
from backend.drafters.network_drafter import NetworkDrafter
from backend.engines.base import Engine
from backend.engines.heads.file import HEAD_SUFFIX, head_for
from backend.engines.registry import all_precisions, copy_spec
from backend.errors import DerbyError
from backend.strategies.declaration import (
    Candidate,
    DrafterInputs,
    Strategy,
    Values,
    Weights,
)
from backend.strategies.equivalent import Equivalent
from backend.strategies.lookup import lookup_of
from backend.strategies.settings import NAMED_SIZE, Choice, Flag, ModelChoice, WholeNumber
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
    if head is not None and draft != HYBRID:
        _require_hidden_states(target)
    if head is not None and target.capabilities.hidden_states:
        return head
    if draft == TRAINED:
        raise DerbyError(
            f"There is no trained draft for {target.spec.name!r}: choose {HYBRID}, {USUAL_COPY}, "
            "or a model with its vocabulary."
        )
    if draft == HYBRID or draft in all_precisions():
        copy = USUAL_COPY if draft == HYBRID else draft
        return copy_spec(target.spec, copy)
    return replace(target.spec, name=draft)


def _head(draft: str, target: ModelSpec) -> Path | None:
    if draft.endswith(HEAD_SUFFIX):
        return Path(draft).expanduser()
    return head_for(target) if draft in (TRAINED, HYBRID) else None


def _require_hidden_states(target: Engine) -> None:
    if not target.capabilities.hidden_states:
        raise DerbyError(
            f"A trained draft reads hidden states, and {target.spec} does not give them: choose "
            f"{USUAL_COPY}, or a model with its vocabulary."
        )


def build(inputs: DrafterInputs) -> Drafter:
    length, tokenizer = inputs.draft_length(), inputs.target.tokenizer
    if inputs.draft is None:
        # A copy of the target that cannot be had: prompt lookup needs none.
        alone = "It drafts by prompt lookup alone, because this copy is not here"
        alone = f"{alone}: {inputs.missing}."
        return lookup_of(inputs, length, declined=(alone,))
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
    return Hybrid(lookup_of(inputs, length), drafter, length)


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
        note = f"No library loads the {draft} draft: this is its prompt lookup."
        return Equivalent(lookup=k, note=note)
    return Equivalent(draft=draft, k=k)


def _gist(values: Values) -> str:
    """Who guesses."""
    if values["draft"] == HYBRID:
        return "Prompt lookup plus trained draft"
    return "A draft guesses, one pass checks"


SPECULATIVE = Strategy(
    "speculative",
    "Speculative",
    "A small draft guesses up to k tokens; the model checks them all in one pass and keeps those "
    "that it would have written itself.",
    gist=_gist,
    settings=(
        Flag("auto", "Auto", "Draft the fastest number of tokens, at most k.", default=True),
        WholeNumber(
            "k",
            "k",
            "Tokens drafted per pass. More are faster only while most are accepted.",
            8,
            1,
            16,
            fixes=NAMED_SIZE,
        ),
        ModelChoice(
            "draft",
            "Draft",
            "The draft. hybrid: prompt lookup plus the trained draft; int4 or int8: a copy of the "
            "model. You can also name a model with the same vocabulary.",
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
            "Same text: exactly the text of KV reuse. Same distribution: a different text, just as "
            "likely, and more guesses are accepted. No difference at temperature 0.",
            TEXT,
            ((TEXT, "same text"), (DISTRIBUTION, "same distribution")),
            {"same text": TEXT, "same distribution": DISTRIBUTION},
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
