"""Prefixes: the longest one is found, by whom it may be, within the budget, and never altered."""

import random
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from backend.decoding.clock import Clock
from backend.engines.base import Session
from backend.engines.fake import FakeEngine
from backend.kvcache.column_caches import Caches, model_key
from backend.kvcache.prefix_cache import PrefixCache
from backend.kvcache.prefix_files import store_in
from backend.kvcache.sources import EARLIER_ANSWERS, NOBODY, Scope, Visitor
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

A, B, C = VISITORS = tuple(map(Visitor, "abc"))

TEXTS = st.lists(st.integers(0, 2), max_size=8)
ROW = 2 * 3 * 5 * 4  # bytes of one token in `cache`
TOKEN = ROW + 8


def cache(tokens: Sequence[int], mark: int = 0) -> dict[str, NDArray[np.float32]]:
    """An array that tells its tokens, and by `mark` whose it is."""
    rows = np.asarray(tokens, np.float32)[None, None, :, None] + 100 * mark
    return {"k": np.broadcast_to(rows, (2, 3, len(tokens), 5)).copy()}


def lcp(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


class Reference:
    """The rules in plain lists: (scope, model, tokens, mark), oldest first."""

    def __init__(self, budget: int, share: int) -> None:
        self.budget = budget
        self.share = share
        self.rows: list[tuple[Scope, str, tuple[int, ...], int]] = []
        self.evicted = self.evicted_own = self.refreshed = self.replaced = 0

    def put(self, scope: Scope, model: str, tokens: tuple[int, ...], mark: int) -> None:
        if not tokens or scope == NOBODY:
            return
        mine = [row for row in self.rows if row[:2] == (scope, model)]
        longer = [row for row in mine if row[2][: len(tokens)] == tokens]
        if longer:
            self.touch(longer[-1])
            self.refreshed += 1
        elif len(tokens) * TOKEN <= min(self.budget, self.share):
            shorter = [row for row in mine if tokens[: len(row[2])] == row[2]]
            self.replaced += len(shorter)
            self.rows = [row for row in self.rows if row not in shorter]
            self.rows.append((scope, model, tokens, mark))
            while self.held(scope) > self.share:
                self.rows.remove(next(row for row in self.rows if row[0] == scope))
                self.evicted_own += 1
            while self.bytes > self.budget:
                self.rows.pop(0)
                self.evicted += 1

    def held(self, scope: Scope) -> int:
        return sum(len(row[2]) for row in self.rows if row[0] == scope) * TOKEN

    def find(self, scope: Scope, model: str, tokens: tuple[int, ...]) -> tuple[int, int]:
        seen = [row for row in self.rows if row[:2] == (scope, model)]
        best = max(seen[::-1], key=lambda row: lcp(row[2], tokens), default=None)
        if best is None or not lcp(best[2], tokens):
            return 0, 0
        self.touch(best)
        return lcp(best[2], tokens), best[3]

    def touch(self, row: tuple[Scope, str, tuple[int, ...], int]) -> None:
        self.rows.remove(row)
        self.rows.append(row)

    @property
    def bytes(self) -> int:
        return sum(len(row[2]) for row in self.rows) * TOKEN


@pytest.mark.parametrize("seed", range(4))
def test_mixed_requests_keep_the_budget_and_the_order_of_use(seed: int) -> None:
    rng = random.Random(seed)
    budget, share = 40 * TOKEN + 3, 25 * TOKEN + 1
    store, reference = PrefixCache(budget, share), Reference(budget, share)
    for mark in range(1, 801):
        scope, model = rng.choice([NOBODY, *VISITORS]), rng.choice(["m", "n"])
        alphabet = rng.choice([1, 2, 3])
        # 25 tokens just fit, 26 do not; either is rare, because the first takes a whole share.
        length = rng.choice([25, 26]) if rng.random() < 0.04 else rng.randrange(9)
        tokens = tuple(rng.randrange(alphabet) for _ in range(length))
        if rng.random() < 0.02:
            store.forget(scope)
            reference.rows = [row for row in reference.rows if row[0] != scope]
        elif rng.random() < 0.5:
            store.put(scope, model, tokens, cache(tokens, mark))
            reference.put(scope, model, tokens, mark)
        else:
            found = store.find(scope, model, tokens)
            length, owner = reference.find(scope, model, tokens)
            assert found.length == length
            if length:
                expected = cache(tokens[:length], owner)["k"]
                assert np.array_equal(found.arrays["k"], expected)
        kept = [(e.scope, e.model, tuple(e.tokens.tolist())) for e in store._entries]
        assert kept == [row[:3] for row in reference.rows]
        assert store.bytes == reference.bytes <= budget
        assert len(store) == len(reference.rows)
    counts = reference.evicted, reference.evicted_own, reference.refreshed, reference.replaced
    assert min(counts) > 10


#: Puts and finds of three visitors: who, "put" or "find", and a text.
REQUESTS = st.lists(
    st.tuples(st.sampled_from(VISITORS), st.booleans(), TEXTS.filter(bool)), max_size=40
)


def texts_of(store: PrefixCache, scope: Scope) -> list[list[int]]:
    return sorted(store.texts(scope, "m"))


@given(REQUESTS, st.integers(1, 12))
def test_where_all_shares_fit_nobody_loses_an_entry_to_another(
    requests: list[tuple[Scope, bool, list[int]]], share: int
) -> None:
    """All visitors had one gigabyte between them: whoever raced most had it, and the others'
    columns began again with an empty cache.
    """
    store = PrefixCache(len(VISITORS) * share * TOKEN, share * TOKEN)
    alone: dict[Scope, PrefixCache] = {scope: PrefixCache(share * TOKEN) for scope in VISITORS}
    for scope, puts, text in requests:
        for cached in (store, alone[scope]):
            if puts:
                cached.put(scope, "m", text, cache(text))
            else:
                cached.find(scope, "m", text)
        assert store.bytes <= store.budget
        for each in VISITORS:
            assert texts_of(store, each) == texts_of(alone[each], each)
            assert alone[each].bytes <= store.share


@given(REQUESTS, REQUESTS, st.integers(1, 12), st.integers(1, 24))
def test_however_much_one_puts_the_others_lose_no_more_than_a_share(
    before: list[tuple[Scope, bool, list[int]]],
    flood: list[tuple[Scope, bool, list[int]]],
    share: int,
    budget: int,
) -> None:
    store = PrefixCache(budget * TOKEN, share * TOKEN)
    for scope, _, text in before:
        if scope != A:
            store.put(scope, "m", text, cache(text))
    kept = store.bytes
    largest = max((len(text) for scope in (B, C) for text in texts_of(store, scope)), default=0)
    for _, _, text in flood:
        store.put(A, "m", text, cache(text))
    held = sum(len(text) for text in texts_of(store, A)) * TOKEN
    assert held <= store.share
    lost = kept - (store.bytes - held)
    assert lost < (share + largest) * TOKEN or lost == 0


def test_a_run_that_ends_after_its_visitor_left_leaves_nothing() -> None:
    """A race that was still ending put its caches under the hash of a visitor who had left, where
    whoever had the hash was lent them.
    """
    engine, store = FakeEngine(), PrefixCache()

    def opened(scope: Scope) -> Session:
        session = Caches(store, scope, EARLIER_ANSWERS).open(
            engine, "target", [1, 2, 3, 4], None, Clock()
        )[0]
        session.forward([1, 2, 3], [-1, 0, 1], [2])
        session.keep([0, 1, 2])
        return session

    late, other = opened(A), opened(B)
    store.forget(A)
    for session in (late, other):
        session.close([1, 2, 3, 4])
    key = model_key(engine)
    assert [store.find(scope, key, [1, 2, 3, 4]).length for scope in (A, B)] == [0, 3]
    opened(A).close([1, 2, 3, 4])  # the visitor is back
    assert store.find(A, key, [1, 2, 3, 4]).length == 3
    assert len(store._visits) <= 3


def test_a_run_that_fails_leaves_what_it_had_kept() -> None:
    engine, store = FakeEngine(), PrefixCache()
    session, _ = Caches(store, A).open(engine, "target", [1, 2, 3], None, Clock())
    session.forward([1, 2], [-1, 0], ())
    session.keep([0, 1])
    session.forward([3, 4], [-1, 0], ())
    session.close([1, 2, 3])
    session.close([1, 2, 3])
    assert store.texts(A, model_key(engine)) == [[1, 2]]
    assert engine.open_sessions == 0


def test_nobody_can_write_to_what_is_kept_or_lent() -> None:
    given_away, tokens = cache([1, 2, 3]), np.array([1, 2, 3])
    array = given_away["k"]
    store = PrefixCache()
    store.put(A, "m", tokens.tolist(), given_away)
    given_away.clear()
    lent = store.find(A, "m", [1, 2, 9])
    view = lent.arrays["k"]
    assert np.shares_memory(view, array)
    assert view.shape == (2, 3, 2, 5)
    for kept in (array, view):
        with pytest.raises(ValueError, match="read-only"):
            kept[0, 0, 0, 0] = 7
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.setflags(write=True)
    store.forget(A)
    assert np.array_equal(view, cache([1, 2])["k"])


@pytest.mark.parametrize("files", [False, True])
def test_a_whole_entry_serves_only_texts_that_begin_with_all_of_it(
    tmp_path: Path, *, files: bool
) -> None:
    """A recurrent state is that behind the last token: cut to a common beginning, it would be
    another text's. Nor does a longer entry stand for a shorter one.
    """
    folder = tmp_path / "prefixes"
    folder.mkdir()
    store = PrefixCache(store=store_in(folder if files else None))

    def kept(length: int) -> dict[str, NDArray[np.float32]]:
        return {"state": np.full((1, 7), length, np.float32)}

    for length in (3, 6, 3, 5):
        store.put(A, "m", range(length), kept(length), whole=True)
    assert [len(text) for text in store.texts(A, "m")] == [6, 3, 5]
    if files:
        store = PrefixCache(store=store_in(folder))
    for text, length in ((range(2), 0), (range(4), 3), ([0, 1, 2, 3, 9], 3), (range(9), 6)):
        found = store.find(A, "m", list(text))
        assert found.length == length
        for array in found.arrays.values():
            assert np.array_equal(array, kept(length)["state"])
    assert store.covers(A, "m", range(5))
    assert not store.covers(A, "m", range(4))


@pytest.mark.parametrize(("prompt", "reused"), [(40, 0), (65, 64), (150, 128)])
def test_a_recurrent_column_leaves_a_checkpoint_near_the_end_of_its_prompt(
    prompt: int, reused: int
) -> None:
    """At the end of its last full chunk: the same prompt then takes one pass, whatever followed."""
    models, columns = LoadedModels(), (parse_column("kv:cache=session"),)
    target, begun = ModelSpec("fake-recurrent", "fake"), "a" * (prompt - 2)
    for text, expected in ((begun, 0), (begun, reused), (f"{begun[:-1]}b", 128 * (prompt == 150))):
        board = Scoreboard(columns)
        race = Race(Request(text + "is", 9, chat=False), columns, target, scope=A)
        race.run(models, board.add, lambda: False)
        score = board.scores[0]
        assert (score.prompt_tokens, score.reused) == (prompt, expected)
        alone = Scoreboard(columns)
        Race(race.request, columns, ModelSpec("fake", "fake")).run(models, alone.add, lambda: False)
        assert score.tokens == alone.scores[0].tokens


def test_an_engine_without_arrays_pays_for_tokens_alone() -> None:
    store = PrefixCache(3 * 8)
    store.put(A, "m", [1, 2, 3], {})
    found = store.find(A, "m", [1, 2])
    assert (found.length, found.arrays, store.bytes) == (2, {}, 24)


@pytest.mark.parametrize("shape", [(2, 3, 1, 5), (2, 3, 3, 5), (2, 2, 5)])
def test_arrays_that_do_not_fit_the_tokens_are_refused(shape: tuple[int, ...]) -> None:
    store = PrefixCache()
    with pytest.raises(ValueError, match="axis 2 of 4 must be 2 tokens"):
        store.put(A, "m", [1, 2], {"k": np.zeros(shape)})
    assert len(store) == 0
