"""Which KV cache a column starts from: an empty one, an earlier run's, or a file's."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.decoding.clock import Clock
from backend.engines.base import Engine, Leave, Session, leave_nothing
from backend.errors import DerbyError
from backend.kvcache.prefix_cache import Prefix, PrefixCache, common_length
from backend.kvcache.snapshots import (
    Binding,
    Snapshot,
    StoredCache,
    default_folder,
    layout_of,
    require_fit,
)
from backend.kvcache.sources import (
    EARLIER_ANSWERS,
    NOBODY,
    THIS_ANSWER,
    CacheSource,
    Scope,
    SnapshotFile,
)
from backend.types import AnswerSoFar, Layers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caches:
    """Opens one column's sessions. `scope` says whose caches may be used and are kept, `source`
    where this column's begin.
    """

    prefixes: PrefixCache
    scope: Scope
    source: CacheSource = THIS_ANSWER

    def load(self) -> Snapshot | None:
        """Read the file to begin from, if any. Raises DerbyError if it is damaged or gone."""
        if isinstance(self.source, SnapshotFile):
            return default_folder().load(self.source.id)
        return None

    def open(
        self,
        engine: Engine,
        kind: str,
        context: Sequence[int],
        file: Snapshot | None,
        clock: Clock,
        longest: int = 0,
        layers: Layers = (),
    ) -> tuple[Session, list[int]]:
        """A session for a text that begins with `context`, and the tokens that it holds already.
        It shows the hidden states of `layers`. Once closed, it leaves its cache to the visitor's
        later columns.

        Taking them over counts on `clock`; preparing for a text of up to `longest` tokens does
        not. At least the last token of `context` is left to be computed. Raises DerbyError if the
        file's cache is not this engine's.
        """
        prefix = self._prefix(engine, kind, context, file)
        held = list(context[: prefix.length])
        session = engine.open(layers)
        try:
            session.reserve(longest)
            if held:
                with clock.step():
                    session.load(len(held), prefix.arrays)
        except BaseException:
            session.close()
            raise
        session.leave = self._leave(engine)
        return session, held

    def _leave(self, engine: Engine) -> Leave:
        """Keeps the cache of a session, unless the visitor has left since or has all of it."""
        if self.scope == NOBODY:
            return leave_nothing
        visit, key = self.prefixes.visit(self.scope), model_key(engine)

        def leave(session: Session, tokens: Sequence[int]) -> None:
            if visit.over or self.prefixes.covers(self.scope, key, tokens):
                return
            try:
                session.truncate(len(tokens))  # a pass that failed may have left rows pending
                for length in session.checkpoints:
                    self.prefixes.put(
                        self.scope,
                        key,
                        tokens[:length],
                        session.export(length),
                        whole=engine.capabilities.recurrent,
                    )
            except DerbyError as error:  # an engine may have no way to copy a model's caches
                log.info("a cache is not kept: %s", error)
            except Exception:
                # The column has ended well or badly by now; its cache only helps later ones.
                log.exception("a cache could not be kept")

        return leave

    def _prefix(
        self, engine: Engine, kind: str, context: Sequence[int], file: Snapshot | None
    ) -> Prefix:
        known = context[:-1]
        if file is not None:
            stored = file.caches.get(kind)
            if stored is None:
                return Prefix(0, {})
            require_fit(kind, stored.binding, binding_of(engine))
            shifts = tuple((at, sink, drop) for at, sink, drop in file.record.get("shifts", ()))
            text = AnswerSoFar(file.answer, shifts).context(file.prompt)[: stored.length]
            length = common_length(np.array(text, np.int64), np.array(known, np.int64))
            if engine.capabilities.recurrent:
                whole = length == stored.length
                return Prefix(length, stored.arrays) if whole else Prefix(0, {})
            return Prefix(length, {name: a[:, :, :length] for name, a in stored.arrays.items()})
        if self.source == EARLIER_ANSWERS:
            return self.prefixes.find(self.scope, model_key(engine), known)
        return Prefix(0, {})

    def texts(self, engine: Engine) -> list[list[int]]:
        """The visitor's earlier texts, if this column may borrow of them, the latest last."""
        if self.source != EARLIER_ANSWERS:
            return []
        return self.prefixes.texts(self.scope, model_key(engine))

    def stored(self, engine: Engine, context: Sequence[int], least: int) -> StoredCache:
        """What is held of this text, to be saved.

        Raises DerbyError if that is less than its first `least` tokens, one at least.
        """
        known = context[:-1]
        prefix = self.prefixes.find(self.scope, model_key(engine), known)
        if prefix.length < max(1, least):
            raise DerbyError(
                "The cache of this column is no longer in memory: run it again, then save it."
            )
        return StoredCache(binding_of(engine), prefix.length, prefix.arrays)


def model_key(engine: Engine) -> str:
    """Caches of equal keys fit each other."""
    return f"{engine.fingerprint} {engine.spec}"


def binding_of(engine: Engine) -> Binding:
    """What caches of this engine fit to. Runs one token, because the layout is not known before."""
    session = engine.open()
    try:
        session.forward([0], [-1], ())
        session.keep([0])
        layout = layout_of(session.export(1))
    finally:
        session.close()
    spec = engine.spec
    return Binding(engine.fingerprint, spec.engine, spec.precision, layout)
