"""The snapshots of a page's visitors: each sees and deletes what their browser saved."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from backend.kvcache.snapshots import Info, SnapshotFolder, default_folder
from backend.limits import PRIVATE, Limits


class VisitorSnapshots:
    """Knows which visitor owns a snapshot, by a hash that only this object can make.

    The key of that hash is never on disk, so a file does not reveal the browser that saved it.
    After a restart, nobody owns the old snapshots. Old snapshots are removed when this object is
    made, and whenever it is used.
    """

    def __init__(self, limits: Limits = PRIVATE) -> None:
        self._limits = limits
        self._key = secrets.token_bytes(32)
        self._folder().tidy()

    def owner(self, visitor: str) -> str:
        """The secret hash of the visitor, 32 hexadecimal digits."""
        return hmac.new(self._key, visitor.encode(), hashlib.sha256).hexdigest()[:32]

    def list(self, visitor: str) -> Sequence[Info]:
        """What the visitor saved, newest first. Raises DerbyError if it cannot be read."""
        folder = self._folder()
        folder.tidy()
        return folder.list(self.owner(visitor))

    def remove(self, visitor: str, name: str) -> None:
        """Delete one of the visitor's own snapshots. Raises DerbyError if it is not theirs."""
        self._folder().remove_own(name, self.owner(visitor))

    def _folder(self) -> SnapshotFolder:
        return default_folder(self._limits)
