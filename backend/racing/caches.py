"""Caches that columns need not compute, because a file has them."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from backend.engines.engine import Engine
from backend.engines.session import Session
from backend.errors import DerbyError

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
            alike = file.metadata() == _identity(engine)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        tokens = arrays.pop(_TOKENS).tolist() if alike else []
    except (OSError, SafetensorError) as error:
        raise DerbyError(
            f"The saved cache cannot be read ({error}): save it again with --save-cache.", path
        ) from error
    if not alike or any(a.ndim != 4 or a.shape[2] < len(tokens) for a in arrays.values()):
        raise DerbyError(
            f"This file holds no cache of {engine.spec}: save it again with --save-cache.", path
        )
    pairs = zip(tokens, text[:-1], strict=False)
    if length := sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)):
        rows = {name.removeprefix("cache/"): a[:, :, :length] for name, a in arrays.items()}
        session.load(tokens[:length], rows)


def _identity(engine: Engine) -> dict[str, str]:
    spec, model = engine.spec, engine.fingerprint
    return {"format": FORMAT, "engine": spec.engine, "precision": spec.precision, "model": model}
