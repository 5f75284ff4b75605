"""Runs of the loop on the fake engine with any drafter, and the naive reference."""

from collections.abc import Callable, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from backend.costs import PassCosts
from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.decoding.seams import Drafter
from backend.decoding.verification import KEYED, Verifier
from backend.drafters.draft_length import AdaptiveDraftLength, DraftLength
from backend.drafters.lookahead import Lookahead, Sizes
from backend.drafters.network_drafter import Hybrid, NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.draft import ModelNetwork
from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.events import Event, Finished, Step
from backend.results.scoreboard import Score
from backend.strategies.registry import strategies
from backend.types import Logits, Proposal, Request, Sampling

PROMPT = tuple(b"The quick brown fox jumps over the quick brown dog, the quick brown ")


#: Strategies whose columns the local loop runs.
LOCAL = tuple(name for name, strategy in strategies().items() if strategy.ours)


def naive(engine: FakeEngine, prompt: Sequence[int], request: Request) -> list[int]:
    """The definition of a lossless answer: every token chosen from the logits of its prefix."""
    sampler, greedy = Sampler(request.sampling), replace(request.sampling, temperature=0)
    text = list(prompt)
    while len(text) - len(prompt) < request.max_new_tokens:
        logits = engine.logits(text)
        if greedy.repetition_penalty != 1:
            logits = processed(logits, text, greedy)
        text.append(sampler.choose(logits, len(text)).token)
        if text[-1] in engine.tokenizer.eos_ids and not request.ignore_eos:
            break
    return text[len(prompt) :]


def processed(logits: Logits, text: Sequence[int], sampling: Sampling) -> Logits:
    """Logits [V] behind a text as transformers makes them: what tokens are drawn from is their
    softmax, at temperature 0 their largest is the token.
    """
    import torch
    from transformers import GenerationConfig, GenerationMixin

    options = {"repetition_penalty": sampling.repetition_penalty}
    if sampling.temperature:
        options = asdict(sampling) | {"do_sample": True}
        del options["seed"]
    configured = GenerationConfig(**options)
    model: Any = GenerationMixin()
    processors = model._get_logits_processor(configured, len(text), device="cpu")
    scores: Any = processors(torch.tensor([text]), torch.tensor(logits)[None])
    return scores[0].numpy()


@dataclass
class Run:
    """A finished column: its events and their fold."""

    events: list[Event]
    score: Score = field(init=False)

    def __post_init__(self) -> None:
        self.score = Score()
        for event in self.events:
            self.score.add(event)

    @property
    def tokens(self) -> list[int]:
        return self.score.tokens

    @property
    def steps(self) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step)]

    @property
    def reason(self) -> str:
        assert isinstance(self.events[-1], Finished)
        return self.events[-1].reason


def run(
    engine: FakeEngine,
    request: Request,
    drafter: Drafter | None = None,
    prompt: Sequence[int] = PROMPT,
    verifier: Verifier = KEYED,
    **parts: object,
) -> Run:
    """Decode to the end with the given parts; with `verifier`, whatever the drafter's own is."""
    drafter = drafter or Drafter()
    if verifier is not KEYED:
        drafter.verifier = verifier  # type: ignore[misc]
    plugged = Parts(engine.open(), engine.tokenizer, Sampler(request.sampling), Clock(), drafter)
    with closing(plugged.session), closing(drafter):
        return Run(list(decode(0, prompt, request, replace(plugged, **parts))))


#: Passes that cost what they do on a few cores.
STEEP = PassCosts((1, 2, 8, 16), (1e-3, 1.1e-3, 1.4e-3, 2e-3), 1e-4)


def drafting(
    model: FakeEngine,
    draft_length: DraftLength,
    sampler: Sampler | None = None,
    eos_ids: Set[int] = frozenset(),
    session: Session | None = None,
) -> NetworkDrafter:
    """A drafter over a model, or over a session of it; greedy unless there is a `sampler`."""
    network = ModelNetwork(session or model.open(), model)
    return NetworkDrafter(network, sampler or Sampler(Sampling()), draft_length, eos_ids)


def drafters(engine: FakeEngine, sampling: Sampling) -> dict[str, Callable[[], Drafter]]:
    """How to make one drafter of each kind; draft models agree, nearly agree and do not."""
    models = {"same": engine, "near": Noisy(engine, 0.5), "far": replace(engine, salt=1)}

    def draft_model(model: FakeEngine, draft_length: DraftLength) -> NetworkDrafter:
        return drafting(model, draft_length, Sampler(sampling), engine.tokenizer.eos_ids)

    def hybrid(model: FakeEngine, k: int) -> Drafter:
        draft_length = AdaptiveDraftLength(STEEP, 1e-4, k)
        return Hybrid(
            PromptLookup(draft_length, 3),
            draft_model(model, draft_length),
            draft_length,
        )

    makers: dict[str, Callable[[], Drafter]] = {"none": Drafter}
    for k in (1, 4, 8):
        for name, model in models.items():
            makers[f"{name} draft k={k}"] = partial(draft_model, model, DraftLength(k))
            makers[f"{name} hybrid k={k}"] = partial(hybrid, model, k)
    for k, ngram in ((1, 1), (4, 2), (8, 3)):
        makers[f"lookup k={k} n={ngram}"] = partial(PromptLookup, DraftLength(k), ngram)
        makers[f"auto lookup k={k}"] = lambda k=k, n=ngram: PromptLookup(
            AdaptiveDraftLength(STEEP, 0.0, k), n
        )
    for shape in ((2, 2, 1), (5, 3, 5), (7, 4, 7), (3, 8, 2), (15, 5, 15)):
        for seeded in (False, True):
            makers[f"lookahead {shape}, seeded={seeded}"] = partial(
                Lookahead, Sizes(*shape), seeded=seeded, seed=1
            )
    return makers


class Noisy(FakeEngine):
    """A draft that agrees with `engine` often but not always: its logits plus some of its own."""

    def __init__(self, engine: FakeEngine, amount: float) -> None:
        super().__init__(
            vocab_size=engine.vocab_size,
            sharpness=engine.sharpness,
            max_context=engine.max_context,
        )
        self._target = engine
        self._own = replace(engine, salt=engine.salt + 99)
        self._amount = np.float32(amount)

    def logits(self, prefix: Sequence[int]) -> Logits:
        logits = self._target.logits(prefix) + self._amount * self._own.logits(prefix)
        return logits.astype(np.float32, copy=False)


class Script(Drafter):
    """Proposes the right continuation, k tokens at a time."""

    def __init__(self, truth: Sequence[int], start: int, k: int) -> None:
        self._truth, self._start, self._k = tuple(truth), start, k

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        done = len(context) - self._start
        return Proposal.chain(self._truth[done : done + min(self._k, budget)])
