"""Stores measured costs, one file for each model, engine, precision, device and machine."""

import json
import logging
import os
import platform
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from backend.costs.pass_costs import PassCosts
from backend.engines.base import Engine
from backend.errors import DerbyError
from backend.models.prepared import cache_dir
from backend.untrusted import read_as

log = logging.getLogger(__name__)

#: Raise it whenever the measurement changes.
RECIPE = "costs v5"


def stored_costs(engine: Engine) -> PassCosts | None:
    """The costs that were stored; None if there are none, or not as they were written."""
    try:
        return read_as(PassCosts, json.loads(_path(engine).read_text(encoding="utf-8")))
    except (OSError, ValueError, DerbyError):
        return None


def write_costs(engine: Engine, costs: PassCosts) -> None:
    """Store them if the folder can be written; else they are measured again next time."""
    try:
        path = _path(engine)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(costs)), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.warning("costs not stored: %s", error)


def _path(engine: Engine) -> Path:
    machine = f"{platform.node()} {platform.machine()} {platform.processor()} {os.cpu_count()}"
    key = f"{RECIPE} {engine.fingerprint} {engine.spec} {machine}"
    return cache_dir() / "costs" / f"{sha256(key.encode()).hexdigest()[:24]}.json"
