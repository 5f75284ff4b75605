"""Layer skipping as a strategy: the model drafts for itself with some of its layers (Draft &
Verify, arXiv 2309.08168), which a short search chooses (SWIFT, arXiv 2410.06916).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from backend.costs.pass_costs import PassCosts
from backend.decoding.drafter import Decision, Drafter
from backend.drafters.network_drafter import NetworkDrafter
from backend.engines.base import Engine
from backend.engines.draft import ModelNetwork
from backend.errors import DerbyError
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy, Values
from backend.strategies.equivalents import Equivalent, Lookup, Nothing
from backend.strategies.settings import NAMED_SIZE, Flag, WholeNumber
from backend.types import Logits, ModelSpec, chain_parents

#: What the search reads. Any text does: it asks where fewer layers expect the same next token.
TEXT = (
    "A glacier is a large body of ice that moves slowly down a valley. First, snow falls and is "
    "pressed into ice. Second, the ice becomes so heavy that it begins to flow. For example, if a "
    "glacier moves 3 metres a day, it moves 21 metres in a week."
)

#: Shares of all layers that the search tries to leave out.
SHARES = (1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3)

#: Draft lengths by which it compares them.
LENGTHS = range(1, 9)


@dataclass(frozen=True, slots=True)
class Found:
    """The layers that draft, of `depth`; the model of these alone; the share of `places` in which
    it expected the token that all layers expect; and what its pass takes of theirs.
    """

    kept: tuple[int, ...]
    depth: int
    draft: Engine
    agreement: float
    places: int
    share: float

    def __str__(self) -> str:
        return (
            f"{len(self.kept)} of {self.depth} layers draft; they agreed with the full model in "
            f"{self.agreement:.0%} of {self.places} places"
        )

    def gain(self, costs: PassCosts) -> float:
        """The speed-up to expect of the best draft length."""
        return max(self._gain(k, costs) for k in LENGTHS)

    def _gain(self, k: int, costs: PassCosts) -> float:
        tokens = sum(self.agreement**i for i in range(k + 1))
        return tokens / (k * self.share + costs(1 + k) / costs.one_row)


#: What was found, by model: a search takes a pass for each layer.
_FOUND: WeakKeyDictionary[Engine, Found] = WeakKeyDictionary()


def search(target: Engine, costs: PassCosts) -> Found:
    """Rank the layers by what the model loses without each one of them; then leave out so many of
    those it misses least that drafting gains most.
    """
    if target not in _FOUND:
        tokens = target.tokenizer.encode(TEXT, chat=False)
        wanted = _logits(target, tokens).argmax(axis=1)
        every = range(target.depth)
        losses = [_loss(_logits(_without(target, left), tokens), wanted) for left in every]
        ranked = sorted(every, key=lambda layer: losses[layer])
        tried = {max(1, round(share * target.depth)) for share in SHARES}
        found = [_found(target, tokens, wanted, ranked[count:]) for count in tried]
        _FOUND[target] = max(found, key=lambda each: each.gain(costs))
    return _FOUND[target]


def _without(target: Engine, layer: int) -> Engine:
    return target.shortened([i for i in range(target.depth) if i != layer], captured=False)


def _found(
    target: Engine, tokens: Sequence[int], wanted: Sequence[int], layers: Sequence[int]
) -> Found:
    kept = tuple(sorted(layers))
    draft = target.shortened(kept)
    agreement = float((_logits(draft, tokens).argmax(axis=1) == wanted).mean())
    share = draft.weight_bytes / target.weight_bytes
    return Found(kept, target.depth, draft, agreement, len(tokens), share)


def _logits(engine: Engine, tokens: Sequence[int]) -> Logits:
    """Those behind each token of a text, float32 [n, V]."""
    session = engine.open()
    try:
        return session.forward(tokens, chain_parents(len(tokens)), range(len(tokens)))
    finally:
        session.truncate(0)
        session.close()


def _loss(logits: Logits, wanted: Sequence[int]) -> float:
    """Minus the mean log probability of these tokens, one a row."""
    best = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - best).sum(axis=1)) + best[:, 0]
    return float((total - logits[np.arange(len(logits)), wanted]).mean())


class LayerSkip(NetworkDrafter):
    """Says, beside what a network's drafter decides, which layers draft."""

    def told(self, found: Found) -> "LayerSkip":
        self.decision, self._found = Decision(why=str(found)), found
        return self

    def conclude(self) -> None:
        super().conclude()
        why = ", ".join(filter(None, (self.decision.why, str(self._found))))
        self.decision = replace(self.decision, why=why)


def build(inputs: DrafterInputs) -> Drafter:
    target, tokenizer = inputs.target, inputs.target.tokenizer
    if not target.capabilities.skipping:
        raise DerbyError(
            f"Layer skipping cannot run on {target.spec}: only torch runs some of a model's layers "
            "over the same weights, of a model without recurrent state. Remove this column."
        )
    now = inputs.costs.now
    found = search(target, now)
    session = found.draft.open()
    session.reserve(inputs.longest)
    network = ModelNetwork(session, found.draft, seconds=found.share * now.one_row)
    network.name = "layer skipping"
    length = replace(inputs, draft=network).draft_length()
    drafter = LayerSkip(network, inputs.sampler, length, tokenizer.eos_ids, tokenizer.vocab_size)
    return drafter.told(found)


def equivalent(values: Values, _target: ModelSpec) -> Equivalent:
    return Nothing("layer skipping", Lookup(values["k"], 3))


LAYERSKIP = Strategy(
    "layerskip",
    "Layer skipping",
    "Some of the model's own layers guess up to k tokens; all of them check these in one pass. No "
    "draft model, and no second copy of the weights.",
    gist="Some of its own layers guess",
    settings=(
        Flag("auto", "Auto", "Draft the fastest number of tokens, at most k.", default=True),
        WholeNumber("k", "k", "Tokens drafted per pass.", 4, 1, 16, fixes=NAMED_SIZE),
    ),
    build=build,
    equivalent=equivalent,
    verified=("", "k=3"),
    candidates=(Candidate(longest=8),),
)
