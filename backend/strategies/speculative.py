"""Speculative decoding as a strategy: a trained head, prompt lookup before it, or a draft model."""

from dataclasses import replace
from pathlib import Path

from backend.decoding.drafter import Drafter
from backend.decoding.sampling import COLDEST, DraftSampler, IndependentSampler
from backend.decoding.verification import KEYED, DistributionVerifier
from backend.drafters.hybrid import Hybrid
from backend.drafters.network_drafter import NetworkDrafter
from backend.engines.base import Engine
from backend.engines.heads.file import HEAD_SUFFIX, head_for
from backend.engines.heads.published import is_published, read_published
from backend.engines.registry import all_precisions, copy_spec
from backend.errors import DerbyError
from backend.strategies.declaration import (
    Candidate,
    DrafterInputs,
    Strategy,
    Values,
    Weights,
)
from backend.strategies.equivalents import EAGLE_3, P_EAGLE, Draft, Equivalent, Lookup, Nothing
from backend.strategies.lookup import NGRAM, lookup_of
from backend.strategies.settings import NAMED_SIZE, Choice, Flag, ModelChoice, WholeNumber
from backend.types import ModelSpec

#: Drafts that are no model's name: the trained head, and the same behind prompt lookup.
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
    if is_published(draft):
        _require_layers(target)
        return Path(draft).expanduser()
    head = _head(draft, target.spec)
    if head is not None and draft != HYBRID:
        _require_hidden_states(target)
    if head is not None and target.capabilities.hidden_states:
        return head
    if draft == TRAINED:
        raise DerbyError(
            f"No draft was trained for {target.spec.name!r}: choose {HYBRID}, {USUAL_COPY}, or a "
            "model with its tokenizer."
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
            f"{target.spec} does not show its hidden states, which a trained draft reads: choose "
            f"{USUAL_COPY}, or a model with its tokenizer."
        )


def _require_layers(target: Engine) -> None:
    if not target.capabilities.layers:
        raise DerbyError(
            f"{target.spec} does not show the hidden states of its layers, which this draft reads: "
            "choose the torch engine."
        )


def build(inputs: DrafterInputs) -> Drafter:
    length, tokenizer = inputs.draft_length(), inputs.target.tokenizer
    if inputs.draft is None:
        # A copy of the target that cannot be had: prompt lookup needs none.
        reason = inputs.missing.rstrip(".")
        alone = f"It drafts by prompt lookup alone, for there is no such copy here: {reason}."
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


def equivalent(values: Values, target: ModelSpec) -> Equivalent:
    draft, k = values["draft"], values["k"]
    if is_published(draft):
        parallel = read_published(Path(draft).expanduser()).block > 1
        return Nothing(P_EAGLE if parallel else EAGLE_3, Lookup(k, NGRAM), draft)
    if _head(draft, target) is not None or draft == TRAINED:
        beside = " beside prompt lookup" if draft == HYBRID else ""
        return Lookup(
            k,
            NGRAM,
            f"The trained head{beside} is Decode Derby's own and no library loads it: this is "
            "prompt lookup alone, and an int4 copy as the draft comes nearer.",
        )
    if draft == HYBRID:
        return Draft(
            k,
            replace(target, precision=USUAL_COPY),
            "Decode Derby looks the text up first and asks the copy elsewhere: no library does "
            "both.",
        )
    if draft in all_precisions():
        return Draft(k, replace(target, precision=draft))
    return Draft(k, replace(target, name=draft))


SPECULATIVE = Strategy(
    "speculative",
    "Speculative",
    "A cheap draft writes up to K tokens ahead; the target checks them all in one forward "
    "pass and keeps those it would have written itself.",
    gist="A draft guesses, one pass checks",
    settings=(
        Flag("auto", "Auto", "Draft only as much as pays here, at most K.", default=True),
        WholeNumber(
            "k",
            "K",
            "Tokens drafted a round; more pay only while most are accepted.",
            8,
            1,
            16,
            fixes=NAMED_SIZE,
        ),
        ModelChoice(
            "draft",
            "Draft",
            "hybrid: prompt lookup, else the trained draft; trained: that alone; int4 or int8: "
            "that copy of the target; a model with its tokenizer; or the folder of an EAGLE-3 or "
            "P-EAGLE draft.",
            HYBRID,
            (
                (HYBRID, "lookup, else trained"),
                (TRAINED, "trained"),
                ("int4", "int4 copy"),
                ("int8", "int8 copy"),
            ),
        ),
        Choice(
            "promise",
            "Promise",
            "same text: token for token that of KV reuse; same distribution: another text that is "
            "as probable, and more of the draft is accepted. At temperature 0 there is no "
            "difference.",
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
