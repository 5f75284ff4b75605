"""A deterministic stand-in for a model: logits are a hash of the prefix, in microseconds.

Good enough that every property of the loop can be tested on it: logits depend on every token of
the prefix and on the order, several continuations are about equally likely (so sampling matters),
and forwards, rows and misuse are counted or refused.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import sleep

import numpy as np
from numpy.typing import NDArray

from backend.engines.batch import Batch, BatchPass
from backend.engines.declaration import EngineDeclaration, Say
from backend.engines.tree import depths
from backend.errors import DerbyError
from backend.text import ByteTokenizer
from backend.types import (
    Arrays,
    Capabilities,
    HiddenStates,
    Logits,
    ModelSpec,
    chain_parents,
)

CAPABILITIES = Capabilities(max_context=4096, batch=True)

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def extend_hash(state: int, token: int) -> int:
    """The 64-bit hash of a prefix one token longer."""
    state = ((state ^ (token + 1)) * _MIX) & _MASK
    return state ^ (state >> 29)


@dataclass
class FakeEngine:
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
    capabilities: Capabilities = CAPABILITIES
    forwards: int = 0
    rows: int = 0
    open_sessions: int = 0

    def __post_init__(self) -> None:
        self.tokenizer = ByteTokenizer(self.vocab_size)
        self._memo = lru_cache(maxsize=4096)(self._compute)

    def open(self) -> "FakeSession":
        self.open_sessions += 1
        return FakeSession(self)

    def open_batch(self, requests: int) -> Batch:
        self.open_sessions += 1
        return Batch(FakeBatch(self, requests), requests)

    @property
    def fingerprint(self) -> str:
        return f"fake {self.salt} {self.period} {self.sharpness}"

    @property
    def weight_bytes(self) -> int:
        return WEIGHT_BYTES

    def synchronize(self) -> None: ...

    def warm_up(self) -> Iterator[None]:
        return iter(())

    def logits(self, prefix: Sequence[int]) -> Logits:
        """The model itself: float32 [V] for a prefix of token ids, a new array."""
        return self.sharpness * self._memo(tuple(prefix[-self.period :] if self.period else prefix))

    def _compute(self, prefix: tuple[int, ...]) -> Logits:
        state = self.salt
        for token in prefix:
            state = extend_hash(state, token)
        bits = np.random.Philox(key=np.array([state, 0], dtype=np.uint64))
        values = np.random.Generator(bits).standard_normal(self.vocab_size, dtype=np.float32)
        if self.vocab_size > ByteTokenizer.EOS:
            # Printable letters and spaces, now and then the end: text one can look at.
            values[:32] -= 40
            values[127:256] -= 40
            values[ByteTokenizer.EOS] -= 1
        return values


class FakeSession:
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._kept: list[int] = []
        self._pending: tuple[Sequence[int], Sequence[int]] = ((), ())
        self._closed = False

    @property
    def length(self) -> int:
        return len(self._kept)

    def forward(self, tokens: Sequence[int], parents: Sequence[int], rows: Sequence[int]) -> Logits:
        if self._closed or self._pending[0] or not tokens or len(tokens) != len(parents):
            raise RuntimeError("forward on a closed session, before keep, or without tokens")
        if any(not -1 <= parent < i for i, parent in enumerate(parents)):
            raise RuntimeError(f"parents out of order: {parents}")
        if not self._engine.capabilities.tree and tuple(parents) != chain_parents(len(parents)):
            raise RuntimeError("this model takes no tree")
        self._check_room(parents)
        self._pending = (tuple(tokens), tuple(parents))
        self._engine.forwards += 1
        self._engine.rows += len(tokens)
        if self._engine.step_seconds:
            sleep(self._engine.step_seconds)
        wanted = [self._engine.logits(self._kept + self._path(row)) for row in rows]
        return np.stack(wanted) if wanted else np.zeros((0, self._engine.vocab_size), np.float32)

    def hidden_states(self) -> HiddenStates:
        raise RuntimeError("the fake engine has no hidden states")

    def _check_room(self, parents: Sequence[int]) -> None:
        limit = self._engine.capabilities.max_context
        if self.length + len(parents) <= limit:
            return  # whatever the tree's depth
        end = self.length + int(max(depths(parents))) + 1
        if end > limit:
            raise DerbyError(f"The text would be {end} tokens long; this model reads {limit}.")

    def _path(self, row: int) -> list[int]:
        tokens, parents = self._pending
        path: list[int] = []
        while row >= 0:
            path.append(tokens[row])
            row = parents[row]
        return path[::-1]

    def keep(self, rows: Sequence[int]) -> None:
        tokens, parents = self._pending
        if any(parents[row] != before for row, before in zip(rows, (-1, *rows), strict=False)):
            raise RuntimeError(f"kept rows {rows} are not a path")
        self._kept += [tokens[row] for row in rows]
        self._pending = ((), ())

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self._kept):
            raise RuntimeError(f"truncate to {length} of {len(self._kept)} tokens")
        del self._kept[length:]
        self._pending = ((), ())

    def export(self, length: int) -> Arrays:
        """The tokens themselves, for they are all that the hash-of-prefix model reads."""
        if self._pending[0] or not 0 <= length <= len(self._kept):
            raise RuntimeError(f"export of {length} of {len(self._kept)} tokens")
        return {"tokens": np.array(self._kept[:length], dtype=np.int64).reshape(1, 1, length, 1)}

    def load(self, length: int, arrays: Arrays) -> None:
        if self._kept or arrays["tokens"].shape != (1, 1, length, 1):
            raise RuntimeError("load into a session that is not empty, or of another model")
        self._kept = arrays["tokens"].ravel().tolist()

    def close(self) -> None:
        if not self._closed:
            self._engine.open_sessions -= 1
        self._closed = True


class FakeBatch:
    """Reads of every row what its mask lets it see: the tokens in the order of their places."""

    def __init__(self, engine: FakeEngine, requests: int) -> None:
        self._engine = engine
        self._tokens = np.zeros((requests, 0), dtype=np.int64)
        self._closed = False

    def run(self, batch: BatchPass) -> tuple[Logits, HiddenStates]:
        engine, (requests, n) = self._engine, batch.tokens.shape
        if self._closed or batch.visible.shape[2] != self._tokens.shape[1] + n:
            raise RuntimeError("a pass over a closed batch, or one of another length")
        self._tokens = np.concatenate([self._tokens, batch.tokens], axis=1)
        engine.forwards += 1
        engine.rows += batch.tokens.size
        if engine.step_seconds:
            sleep(engine.step_seconds)
        logits = np.zeros((requests, len(batch.rows), engine.vocab_size), dtype=np.float32)
        for i, tokens in enumerate(self._tokens):
            for place, row in enumerate(batch.rows):
                logits[i, place] = engine.logits(tokens[batch.visible[i, row]].tolist())
        return logits, np.zeros((requests, n, 0), dtype=np.float32)

    def gather(self, index: NDArray[np.int64]) -> None:
        self._tokens = np.take_along_axis(self._tokens, index, axis=1)

    def load(self, arrays: Arrays, requests: int) -> None:
        self._tokens = np.repeat(arrays["tokens"].reshape(1, -1), requests, axis=0)

    def close(self) -> None:
        if not self._closed:
            self._engine.open_sessions -= 1
        self._closed = True


#: Bytes that the weights of a fake model are said to take.
WEIGHT_BYTES = 1_000_000

#: Seconds by number of rows of the model "fake-priced": so much a row that no guess pays.
STEEP_PASSES = {rows: 5e-4 * (1 + rows) for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)}

#: The models that can be named: "fake", its disagreeing draft, and those that are slow, repeat
#: themselves, or do both for ever; passes of "fake-priced" have stated costs.
_MODELS: dict[str, Callable[[ModelSpec], FakeEngine]] = {
    "fake": FakeEngine,
    "fake-slow": lambda spec: FakeEngine(spec, step_seconds=0.02),
    "fake-draft": lambda spec: FakeEngine(spec, salt=7),
    "fake-loop": lambda spec: FakeEngine(spec, period=2, sharpness=4.0),
    "fake-priced": FakeEngine,
    "fake-endless": lambda spec: FakeEngine(spec, period=2, sharpness=4.0, step_seconds=0.02),
}


def open_fake(spec: ModelSpec, _say: Say) -> FakeEngine:
    """The fake engine that `spec.name` stands for. Raises DerbyError for an unknown name."""
    if spec.name not in _MODELS:
        known = ", ".join(_MODELS)
        raise DerbyError(f"The fake engine has no model {spec.name!r}: use one of {known}.")
    return _MODELS[spec.name](spec)


FAKE = EngineDeclaration(
    name="fake",
    title="Fake",
    precisions=("fp32",),
    devices=lambda: ("CPU",),
    device_help="CPU",
    open=open_fake,
    estimate_bytes=lambda _spec, _say: WEIGHT_BYTES,
    models=("fake", "fake-slow", "fake-draft", "fake-loop"),
    capabilities=CAPABILITIES,
    pass_seconds=lambda spec: STEEP_PASSES if spec.name == "fake-priced" else {},
    loads_at_once=True,
    demo=True,
)
