"""Which cache a column begins with, on either side of a length threshold."""

import pytest

from backend.decoding.clock import Clock
from backend.engines.fake import FakeEngine
from backend.kvcache.column_caches import Caches
from backend.kvcache.prefix_cache import PrefixCache
from backend.kvcache.snapshots import Snapshot
from backend.kvcache.sources import EARLIER_ANSWERS, SnapshotFile, Visitor
from backend.types import Capabilities, chain_parents

THRESHOLD = 8


@pytest.mark.parametrize(("length", "held"), [(8, 7), (9, 0), (10, 9)])
def test_a_text_one_longer_than_a_threshold_is_saved_and_goes_on(length: int, held: int) -> None:
    """Of exactly that length, its cache was said to be no longer held: it had been left as a text
    without the last token, which is never computed, and was looked for as one with it. What goes
    on from it computes all of it anew, for it is longer than the threshold now.
    """
    engine = FakeEngine(capabilities=Capabilities(4096, length_thresholds=(THRESHOLD,)))
    text = list(range(length))
    caches = Caches(PrefixCache(), Visitor("a"), EARLIER_ANSWERS)
    session, _ = caches.open(engine, "target", text[:-1], None, Clock())
    session.forward(text[:-1], chain_parents(length - 1), [length - 2])
    session.keep(range(length - 1))
    session.close()
    stored = caches.stored(engine, text, length - 1)
    assert stored.length == length - 1
    file = Snapshot({}, tuple(text[:3]), tuple(text[3:]), {"target": stored})
    later = Caches(PrefixCache(), Visitor("a"), SnapshotFile("0" * 16))
    session, known = later.open(engine, "target", text, file, Clock())
    session.close()
    assert known == text[:held]
