"""Caches that columns need not compute: of a file, or of another column of the race."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.decoding.clock import rounded
from backend.decoding.loop import Parts
from backend.engines.engine import Engine
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.events import Prefilled
from backend.types import LAST_LAYER, PREFILL_CHUNK, Arrays, HiddenStates, ModelSpec

#: What a cache fits to, as the file's metadata has it: `model` is the digest of the weights.
FORMAT = "decode-derby-cache-3"
_TOKENS = "tokens"


def require_cache(engine: Engine) -> None:
    """Raise DerbyError if the engine has no cache that could be saved."""
    if engine.guesses == "none":
        raise DerbyError(
            f"{engine.spec} computes one token at a time here, and --save-cache does not save its "
            "state: choose another model."
        )


def save_cache(path: Path, engine: Engine, session: Session) -> None:
    """Write the tokens of a session and their cache. Raises DerbyError if the file cannot be
    written.
    """
    arrays = {f"cache/{name}": array for name, array in session.save(session.length).items()}
    arrays[_TOKENS] = np.array(session.tokens, dtype=np.int64)
    partial = path.with_name(f"{path.name}.partial")
    try:
        save_file(arrays, partial, _identity(engine))
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise DerbyError(
            f"The cache cannot be saved ({error}): check the folder and its free space.", path
        ) from error


def restore(path: Path, engine: Engine, session: Session, text: Sequence[int]) -> None:
    """Have an empty session hold what a file knows of a text, but for its last token. Raises
    DerbyError if the file is another model's, or damaged.
    """
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DerbyError(
            f"The saved cache cannot be read ({error}): save it again with --save-cache.", path
        ) from error
    if metadata.get("format") != FORMAT or _TOKENS not in arrays:
        raise DerbyError("This file holds no cache that --save-cache wrote: save one.", path)
    for name, value in _identity(engine).items():
        if metadata.get(name) != value:
            raise DerbyError(
                f"The saved cache is of {name} {metadata.get(name)!r:.80}, and this column's is "
                f"{value!r:.80}: race with what it was saved with.",
                path,
            )
    tokens = arrays.pop(_TOKENS).tolist()
    if any(array.ndim != 4 or array.shape[2] < len(tokens) for array in arrays.values()):
        raise DerbyError("The saved cache has fewer rows than tokens: save it again.", path)
    pairs = zip(tokens, text[:-1], strict=False)
    if length := sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)):
        rows = {name.removeprefix("cache/"): a[:, :, :length] for name, a in arrays.items()}
        session.load(tokens[:length], rows)


def _identity(engine: Engine) -> dict[str, str]:
    spec, model = engine.spec, engine.fingerprint
    return {"format": FORMAT, "engine": spec.engine, "precision": spec.precision, "model": model}


@dataclass(slots=True)
class Reading:
    """The rows behind `tokens`, and of each chunk of these the target's seconds and its hidden
    states [PREFILL_CHUNK, D]. Without tokens: it has not come to the last pass.
    """

    tokens: list[int] = field(default_factory=list)
    rows: Arrays = field(default_factory=dict)
    chunks: list[tuple[float, HiddenStates]] = field(default_factory=list)

    def add(self, event: Prefilled, parts: Parts) -> None:
        """Take what the pass behind `event` computed."""
        session, seconds = parts.session, parts.clock.last
        self.chunks.append((seconds["total"] - seconds["draft"], session.hidden_states()))
        if event.total - event.done <= PREFILL_CHUNK:
            self.rows, self.tokens = session.save(session.length), list(session.tokens)

    def copied(self, column: int, prompt: Sequence[int], parts: Parts) -> Iterator[Prefilled]:
        """Have a column read this: the target's time is as measured, its own draft's is added."""
        clock, drafter = parts.clock, parts.drafter
        parts.session.load(self.tokens, self.rows)
        for number, (seconds, states) in enumerate(self.chunks):
            start = number * PREFILL_CHUNK
            with clock.step(), clock.part("draft"):
                if drafter.states is not None:
                    drafter.states.add(start, states)
                drafter.prefill(prompt, start + PREFILL_CHUNK)
            clock.seconds += seconds
            both = rounded(seconds + clock.last["total"])
            yield Prefilled(column, start + PREFILL_CHUNK, len(prompt), both)


class Readings:
    """What was read in one race, by model, until the last of the columns on it has begun; `columns`
    are the models of those that take turns.
    """

    def __init__(self, columns: Iterable[ModelSpec] = ()) -> None:
        self._coming = Counter(columns)
        self._read: dict[ModelSpec, Reading] = {}

    def begin(self, prompt: Sequence[int], parts: Parts, engine: Engine) -> Reading | None:
        """What a column is to begin with, or to leave for others; None: it reads for itself, as it
        holds something already, copies are not cheap, or its draft reads what is not copied.
        """
        spec, states = engine.spec, parts.drafter.states
        self._coming[spec] -= 1
        reading, others = self._read.get(spec), self._coming[spec] > 0
        if not others:
            self._read.pop(spec, None)
        copied = engine.guesses != "none" and spec.device == "CPU" and parts.session.length == 0
        if not copied or (states and states.layers != LAST_LAYER):
            return None
        if reading is not None and reading.tokens:
            return reading if reading.tokens == prompt[: len(reading.tokens)] else None
        return self._read.setdefault(spec, Reading()) if others and reading is None else None
