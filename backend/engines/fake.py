"""A deterministic stand-in for a model: logits are a hash of the prefix, in microseconds.

Good enough that every property of the loop can be tested on it: logits depend on every token of
the prefix and on the order, several continuations are about equally likely (so sampling matters),
and forwards, rows and misuse are counted or refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import sleep

import numpy as np

from backend.engines.engine import Engine, EngineDeclaration, Say
from backend.engines.session import Session
from backend.errors import unknown
from backend.tokenizer import ByteTokenizer
from backend.types import Arrays, Guesses, HiddenStates, Layers, Logits, ModelSpec

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(eq=False)
class FakeEngine(Engine):
    """`sharpness` scales the logits; `salt` makes another model: a draft that disagrees.

    `period` > 0 hashes only the last `period` tokens, so that texts repeat and lookup can win.
    `step_seconds` is slept in every forward pass, for a page that can be watched.
    """

    spec: ModelSpec = field(default_factory=lambda: ModelSpec("fake", "fake", "fp32", "CPU"))
    vocab_size: int = 257
    sharpness: float = 2.0
    salt: int = 0
    period: int = 0
    step_seconds: float = 0.0
    max_context: int = 4096
    guesses: Guesses = "trees"
    forwards: int = 0
    rows: int = 0
    open_sessions: int = 0

    def __post_init__(self) -> None:
        self.tokenizer = ByteTokenizer(self.vocab_size)
        self.fingerprint = f"fake {self.salt} {self.period} {self.sharpness}"
        self.weight_bytes, self.row_bytes = WEIGHT_BYTES, 8
        self._memo = lru_cache(maxsize=4096)(self._compute)

    def open(self, rows: int = 0, layers: Layers = ()) -> Session:
        return FakeSession(self)

    def logits(self, prefix: Sequence[int]) -> Logits:
        """The model itself: float32 [V] for a prefix of token ids, a new array."""
        return self.sharpness * self._memo(tuple(prefix[-self.period :] if self.period else prefix))

    def _compute(self, prefix: tuple[int, ...]) -> Logits:
        state = self.salt
        for token in prefix:
            state = ((state ^ (token + 1)) * _MIX) & _MASK
            state ^= state >> 29
        bits = np.random.Philox(key=np.array([state, 0], dtype=np.uint64))
        values = np.random.Generator(bits).standard_normal(self.vocab_size, dtype=np.float32)
        if self.vocab_size > ByteTokenizer.EOS:
            # Printable letters and spaces, now and then the end: text one can look at.
            values[:32] -= 40
            values[127:256] -= 40
            values[ByteTokenizer.EOS] -= 1
        return values


class FakeSession(Session):
    """Reads of every new row the context and its ancestors, from the tokens themselves."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine.max_context, engine.guesses)
        self._engine = engine
        self._hidden = np.zeros((0, 2), dtype=np.float32)
        self._closed = False
        engine.open_sessions += 1

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        engine, tree = self._engine, self._tree(tokens, parents, rows)
        engine.forwards += 1
        engine.rows += len(tokens)
        if engine.step_seconds:
            sleep(engine.step_seconds)
        new = np.array(tokens, np.int64)
        self._hidden = np.stack([tree.depths + self.length, new], axis=1).astype(np.float32)
        logits = np.zeros((len(rows), engine.vocab_size), dtype=np.float32)
        for place, row in enumerate(rows):
            logits[place] = engine.logits([*self.tokens, *new[tree.seen[row]].tolist()])
        self._pending(tokens, parents)
        return logits

    def hidden_states(self, layers: Layers) -> HiddenStates:
        """Of each new row its position and its token, whatever the layers."""
        return self._hidden.copy()

    def _save(self, length: int) -> Arrays:
        """The tokens themselves, because they are all that the hash-of-prefix model reads."""
        return {"tokens": np.array(self.tokens[:length]).reshape(1, 1, -1, 1)}

    def _load(self, length: int, arrays: Arrays) -> None:
        if arrays.keys() != {"tokens"}:
            raise RuntimeError("another model's arrays")

    def _keep(self, rows: Sequence[int]) -> None: ...

    def _cut(self, length: int) -> None:
        if self._engine.guesses == "none":
            self.tokens.clear()

    def close(self) -> None:
        if not self._closed:
            self._engine.open_sessions -= 1
        self._closed = True


#: Bytes that the weights of a fake model are said to take.
WEIGHT_BYTES = 1_000_000

#: The models that can be named: "fake", its disagreeing draft, and those that are slow, repeat
#: themselves, or do both for ever; "fake-one-token" writes what "fake" writes, one token at a time.
_MODELS: dict[str, Callable[[ModelSpec], FakeEngine]] = {
    "fake": FakeEngine,
    "fake-slow": lambda spec: FakeEngine(spec, step_seconds=0.02),
    "fake-draft": lambda spec: FakeEngine(spec, salt=7),
    "fake-loop": lambda spec: FakeEngine(spec, period=2, sharpness=4.0),
    "fake-one-token": lambda spec: FakeEngine(spec, guesses="none"),
    "fake-endless": lambda spec: FakeEngine(spec, period=2, sharpness=4.0, step_seconds=0.02),
}


def open_fake(spec: ModelSpec, _say: Say) -> FakeEngine:
    """The fake engine that `spec.name` stands for. Raises DerbyError for an unknown name."""
    if spec.name not in _MODELS:
        raise unknown("model", spec.name, _MODELS)
    return _MODELS[spec.name](spec)


FAKE = EngineDeclaration(
    name="fake",
    title="Fake",
    precisions=("fp32",),
    devices=lambda: ("CPU",),
    device_help="CPU",
    open=open_fake,
    estimate_bytes=lambda _spec, _say: WEIGHT_BYTES,
    models=("fake", "fake-slow", "fake-draft", "fake-loop", "fake-one-token"),
    loads_at_once=True,
    demo=True,
)
