"""Keeps costs on disk, one file for each model, engine, precision, device and machine: the curve as
it was measured, and what passes have taught since.
"""

import json
import logging
import os
import platform
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from backend.costs.learnt import Correction, LearntCosts
from backend.costs.pass_costs import PassCosts
from backend.engines.base import Engine
from backend.errors import DerbyError
from backend.models.cache_folder import cache_dir
from backend.untrusted import read_as

log = logging.getLogger(__name__)

#: Raise it whenever the measurement changes.
RECIPE = "costs v4"

#: Raise it whenever what is learnt means something else; the measurement then stands alone.
LEARNT = "learnt v1"


def kept_costs(engine: Engine) -> LearntCosts | None:
    """The costs that were kept; None if there are none, or not as they were written."""
    try:
        kept = _read(_path(engine, RECIPE))
        prior = read_as(PassCosts, kept)
        return LearntCosts(prior, read_as(Correction | None, kept.get(LEARNT)))
    except (OSError, ValueError, DerbyError):
        return None


def _read(path: Path) -> dict[str, Any]:
    """Raises OSError or ValueError for what is not there, or not as it was written."""
    text, _, digest = path.read_text(encoding="utf-8").partition("\n")
    if _digest(text) != digest:
        raise ValueError(f"{path.name} is damaged")
    return json.loads(text)


def keep(engine: Engine, costs: LearntCosts) -> None:
    """Keep them if the folder can be written; else they are measured again next time."""
    _write(_path(engine, RECIPE), {**asdict(costs.prior), LEARNT: asdict(costs.correction)})


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        text = json.dumps(content)
        partial.write_text(f"{text}\n{_digest(text)}", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.warning("what passes cost could not be kept: %s", error)


def _path(engine: Engine, recipe: str) -> Path:
    machine = f"{platform.node()} {platform.machine()} {platform.processor()} {os.cpu_count()}"
    key = f"{recipe} {engine.fingerprint} {engine.spec} {machine}"
    return cache_dir() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
