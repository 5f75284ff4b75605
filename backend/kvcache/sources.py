"""Whose KV caches a column may use, and where its own begins."""

import re
from dataclasses import dataclass
from typing import Any

_SNAPSHOT_ID = re.compile(r"[0-9a-f]{16}")


def is_snapshot_id(value: Any) -> bool:
    """Tell whether a file may have this id: 16 hexadecimal digits."""
    return isinstance(value, str) and _SNAPSHOT_ID.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Visitor:
    """Keeps caches apart: no visitor is lent what another one left. `id` is theirs alone."""

    id: str


@dataclass(frozen=True, slots=True)
class Nobody:
    """Leaves no cache behind and is lent none."""


Scope = Visitor | Nobody
NOBODY = Nobody()


@dataclass(frozen=True, slots=True)
class ThisAnswer:
    """Begins with an empty cache."""


@dataclass(frozen=True, slots=True)
class EarlierAnswers:
    """Begins with the longest prefix that the visitor's earlier answers share with the text."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Begins with what the snapshot of this id holds."""

    id: str


CacheSource = ThisAnswer | EarlierAnswers | SnapshotFile
THIS_ANSWER = ThisAnswer()
EARLIER_ANSWERS = EarlierAnswers()
