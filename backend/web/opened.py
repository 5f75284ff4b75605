"""The races that visitors opened from links and files."""

import zlib
from collections import OrderedDict

from backend.records.file import as_bytes, from_bytes
from backend.records.record import RaceRecord


class OpenedRaces:
    """The last race that each visitor opened, compressed: read, it takes some ten times the memory
    or more. Those of `most` visitors are kept, until they have left.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, tuple[int, bytes]] = OrderedDict()

    def keep(self, visitor: str, number: int, record: RaceRecord) -> None:
        """Keep the race under this number, which the visitor's page knows it by."""
        self._kept[visitor] = number, zlib.compress(as_bytes(record))
        self._kept.move_to_end(visitor)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def number(self, visitor: str) -> int:
        """That of the visitor's race; 0: none is kept."""
        return self._kept.get(visitor, (0, b""))[0]

    def record(self, visitor: str) -> RaceRecord | None:
        """The visitor's race; None: none is kept. Slow."""
        packed = self._kept.get(visitor, (0, b""))[1]
        return from_bytes(zlib.decompress(packed)) if packed else None

    def forget(self, visitor: str) -> None:
        """Keep nothing of the visitor any more."""
        self._kept.pop(visitor, None)
