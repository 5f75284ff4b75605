"""The Hub models that were fetched, what is made of them, and how much disk they may take."""

import json
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backend.errors import DerbyError
from backend.models.cache_folder import cache_dir
from backend.models.files import fingerprint_of
from backend.models.gguf import SUFFIX, folder_name
from backend.models.hub import (
    HUB_ID,
    PREFIX,
    Download,
    Say,
    fetched_by_others,
    hub_folder,
    is_fetched,
)
from backend.models.prepared import MANIFEST, remove_prepared

#: One that was used so many seconds ago may be in use in another process.
RECENT = 600.0


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model of the Hub in the cache: its `folders`, with what was made of it, take `size` bytes.

    `used` is when it was last asked for, in seconds since 1970.
    """

    name: str
    folders: tuple[Path, ...]
    size: int
    used: float


def fetched_models() -> list[FetchedModel]:
    """Every Hub model in the cache, the one used last first."""
    found: list[FetchedModel] = []
    for folder in cache_dir().glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # no manifest: no model
            found.append(_fetched(folder))
    return sorted(found, key=lambda model: model.used, reverse=True)


def _fetched(folder: Path) -> FetchedModel:
    recipe, digests = _manifest(folder)
    folders = [folder]
    for path, digest in tuple(digests.items()):
        made = cache_dir() / folder_name(digest)
        if path.suffix == SUFFIX and made.is_dir():
            folders.append(made)
            digests |= _manifest(made)[1]
    if (folders[-1] / "config.json") in digests:  # else its GGUF file was never converted
        fingerprint = fingerprint_of(folders[-1], digests.__getitem__)
        folders += sorted(cache_dir().glob(f"openvino-*-{fingerprint[:16]}"))
    size = sum(path.stat().st_size for each in folders for path in each.rglob("*"))
    name = recipe.rpartition(" ")[2]
    return FetchedModel(name, tuple(folders), size, (folder / MANIFEST).stat().st_mtime)


def _manifest(folder: Path) -> tuple[str, dict[Path, str]]:
    """What the manifest of a prepared folder says: its recipe, and each file's SHA-256."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    digests = {folder / name: str(facts["sha256"]) for name, facts in manifest["files"].items()}
    return str(manifest["recipe"]), digests


def remove_fetched(name: str) -> int:
    """Remove a Hub model and what was made of it: the bytes that this freed. Raises DerbyError if
    there is none of that name, or if it is just being made.
    """
    models = {model.name: model for model in fetched_models()}
    if name not in models:
        names = ", ".join(models) or "none"
        raise DerbyError(f"No Hub model {name!r:.200} was downloaded; there are: {names}.")
    for folder in reversed(models[name].folders):
        remove_prepared(folder)
    return models[name].size


@dataclass(frozen=True, slots=True)
class HubQuota:
    """All fetched models may take `limit` bytes of disk; 0: no further one is fetched."""

    limit: int

    def fetch(self, name: str, say: Say, needed: Collection[str] = ()) -> None:
        """Have the Hub model `name` here, removing those used longest ago if there is no room, but
        none that is `needed` nor one used just now. Any other kind of name is left alone.

        Raises DerbyError for a model that cannot be had or exceeds the limit.
        """
        if HUB_ID.fullmatch(name):
            if not self.limit and not is_fetched(name) and fetched_by_others(name) is None:
                raise DerbyError(
                    f"The Hub model {name!r} is not here, and downloads from the Hub are off "
                    f"(the limit hub_bytes is 0): choose an offered model."
                )
            hub_folder(name, say, lambda download: self._make_room(download, {name, *needed}))

    def trim(self, needed: Collection[str] = ()) -> None:
        """Remove models used longest ago while what was made of them exceeds the limit."""
        if self.limit:
            self._remove(0, needed)

    def _make_room(self, download: Download, needed: Collection[str]) -> None:
        kept = sum(model.size for model in fetched_models() if _in_use(model, needed))
        if kept + download.size > self.limit:
            raise DerbyError(
                f"The Hub model {download.name!r} takes {download.size / 1e6:,.0f} MB, and Hub "
                f"models may take {self.limit / 1e6:,.0f} MB of disk here, of which those in use "
                f"take {kept / 1e6:,.0f}: choose a smaller one, or try again later (the limit is "
                "hub_bytes)."
            )
        self._remove(download.size, needed)

    def _remove(self, wanted: int, needed: Collection[str]) -> None:
        """Remove models, the one used longest ago first, until so many bytes are within the limit
        or only those in use are left.
        """
        models = fetched_models()
        taken = sum(model.size for model in models) + wanted
        for model in reversed(models):
            if taken <= self.limit:
                return
            if not _in_use(model, needed):
                with suppress(DerbyError):
                    taken -= remove_fetched(model.name)


def _in_use(model: FetchedModel, needed: Collection[str]) -> bool:
    return model.name in needed or time.time() - model.used < RECENT
