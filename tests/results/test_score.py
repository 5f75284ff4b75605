"""The figures people compare, against streams worked out by hand."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.decoding.seams import Decision
from backend.events import (
    CostsKnown,
    Decided,
    Event,
    Failed,
    Fed,
    Filled,
    Finished,
    Prefilled,
    Preparing,
    Proposed,
    Started,
    Step,
)
from backend.results.scoreboard import Score


def step(
    tokens: list[int], total: float, *, drafted: int = 0, accepted: int = 0, rows: int = 1
) -> Step:
    """A step in which half the time is forward, a quarter drafting, the rest rest."""
    seconds = {"draft": total / 4, "mask": 0.0, "forward": total / 2, "rest": total / 4}
    seconds["total"] = total
    origins, gaps = ["sampled"] * len(tokens), [float(token) for token in tokens]
    spans = [["sampled", chr(token)] for token in tokens]
    return Step(0, tokens, origins, gaps, spans, rows, drafted, accepted, seconds)


def scored(*events: Event) -> Score:
    score = Score()
    for event in events:
        score.add(event)
    return score


SPECULATIVE = (
    Started(0, 100, "a model"),
    Prefilled(0, 64, 100, 0.5),
    step([65], 0.25, rows=100),
    step([66, 67, 68], 0.5, drafted=4, accepted=2, rows=5),
    step([69], 0.25, drafted=4, accepted=0, rows=5),
    step([70], 0.25),
    step([71, 72], 0.5, drafted=2, accepted=1, rows=3),
    Finished(0, "token limit", [["sampled", "!"]]),
)


def test_a_speculative_column_worked_out_by_hand() -> None:
    score = scored(*SPECULATIVE)
    assert (score.state, score.reason, score.model) == ("done", "token limit", "a model")
    assert (score.prompt_tokens, score.prefilled) == (100, 100)
    assert (score.ttft, score.seconds) == (0.75, 2.25)
    assert (score.tpot, score.tokens_per_forward) == (1.5 / 7, 7 / 4)
    assert score.tokens_per_second == pytest.approx(7 / 1.5)
    assert (score.steps, score.rows) == (5, 114)
    assert (score.drafted, score.accepted, score.acceptance) == (10, 3, 0.3)
    assert score.positions == [(3, 2), (3, 1), (2, 0), (2, 0)]
    assert score.parts == {"draft": 0.4375, "mask": 0.0, "forward": 0.875, "rest": 0.4375}
    assert score.text == "ABCDEFGH!"
    assert score.gaps == [65.0, 66.0, 67.0, 68.0, 69.0, 70.0, 71.0, 72.0]


def test_the_moments_of_a_column_replay_it() -> None:
    """Text and tokens come back from them alone, each at its time on the clock."""
    fed = Fed(0, 3, [["fixed", "Say: "]], 0.5)
    silent = replace(step([75], 0.25, rows=2), spans=[])
    filled = Filled(0, "a", "K", [["sampled", "K"]])
    beginning, chunk, *rest = SPECULATIVE
    score = scored(beginning, fed, chunk, *rest[:-1], silent, filled, rest[-1])
    assert [tuple(moment) for moment in score.moments] == [
        (0.5, 0, [["fixed", "Say: "]], 0),
        (1.25, 1, [["sampled", "A"]], 1),
        (1.75, 3, [["sampled", "B"], ["sampled", "C"], ["sampled", "D"]], 2),
        (2.0, 1, [["sampled", "E"]], 3),
        (2.25, 1, [["sampled", "F"]], 4),
        (2.75, 2, [["sampled", "G"], ["sampled", "H"]], 5),
        (3.0, 1, [], 6),
        (3.0, 0, [["sampled", "K"]], 6),
        (3.0, 0, [["sampled", "!"]], 6),
    ]
    assert score.text == "Say: ABCDEFGHK!"
    assert sum(moment.tokens for moment in score.moments) == score.length
    assert score.moments[-1].clock == score.seconds


def test_costs_that_were_corrected_hold_for_all_passes() -> None:
    """The speed-up of the first rounds was predicted by a curve that later ones proved wrong."""
    wrong = CostsKnown(0, [1, 8], [0.2, 0.9], 0.0, 0.0)
    right = CostsKnown(0, [1, 8], [0.2, 0.34], 0.01, 0.0, [1e-4, 1e-5])
    beginning, *rest = SPECULATIVE
    known = scored(beginning, right, *rest)
    corrected = scored(beginning, wrong, *rest[:-1], right, rest[-1])
    assert 0 < known.expected_seconds == pytest.approx(corrected.expected_seconds)
    assert known.plain_seconds == pytest.approx(corrected.plain_seconds)


def test_tokens_forced_in_the_first_step_are_decode_speed_and_others_are_not() -> None:
    """A grammar's lane began nine tokens ahead, which no speed-up knew of: "Grammar finished first;
    Speculative wrote fastest". Several tokens in a server's first chunk took their time.
    """
    later = (step([68], 0.5), step([69, 70], 1.0))
    score = scored(step([65, 66, 67], 1.0), *later)
    assert (score.ttft, score.tpot, score.tokens_per_forward) == (1.0, 0.5, 1.5)
    ahead = scored(
        replace(step([65, 66, 67], 1.0), origins=["sampled", "forced", "forced"]), *later
    )
    assert (ahead.ttft, ahead.tpot, ahead.tokens_per_forward) == (1.0, 0.3, 2.5)
    each = score.plain_seconds / 3
    assert ahead.plain_seconds == pytest.approx(5 * each), "predictions count them, too"


def test_a_stateless_column_pays_for_its_prefills_in_every_token() -> None:
    first = (Prefilled(0, 64, 70, 1.0), step([65], 0.5, rows=70))
    second = (Prefilled(0, 64, 71, 1.0), step([66], 0.5, rows=71))
    score = scored(Started(0, 70, "m"), *first, *second)
    assert (score.ttft, score.tpot) == (1.5, 1.5)
    assert score.prefilled == 70
    assert score.tokens_per_forward == 1


def test_what_is_not_known_yet_is_zero() -> None:
    for events in ((), (Started(0, 9, "m"),), SPECULATIVE[:3], (Failed(0, "x"),)):
        score = scored(*events)
        figures = (score.tpot, score.tokens_per_second, score.tokens_per_forward)
        assert (*figures, score.acceptance) == (0, 0, 0, 0)


def test_tokens_that_a_grammar_forces_are_no_drafts() -> None:
    """They were counted as accepted, which inflated acceptance and the K given to production; and a
    draft behind them that was rejected is a draft all the same.
    """
    forced = replace(
        step([65, 66, 67, 68], 1.0, drafted=2, accepted=0, rows=6),
        origins=["forced"] * 3 + ["bonus"],
    )
    score = scored(step([1], 1.0), forced, step([69, 70], 1.0, drafted=2, accepted=1, rows=3))
    assert (score.forced, score.drafted, score.accepted, score.acceptance) == (3, 4, 1, 0.25)
    assert (score.positions, score.depths) == ([(2, 1), (2, 0)], {(2, 0): 1, (2, 1): 1})


@given(st.data())
def test_guesses_are_counted_by_their_depth_in_any_trees(data: st.DataObject) -> None:
    offered, right, events, accepted = Counter[int](), Counter[int](), list[Event](), 0
    for _ in range(data.draw(st.integers(0, 4))):
        forced, guesses = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 6))
        parents = list(range(-1, forced - 1))
        parents += [
            data.draw(st.integers(forced - 1, i - 1)) for i in range(forced, forced + guesses)
        ]
        paths: list[list[int]] = []
        for i, parent in enumerate(parents):
            paths.append([*(paths[parent] if parent >= 0 else []), i])
        path = data.draw(st.sampled_from([[], *paths]))
        deep, ours = {len(each) - forced for each in paths}, max(len(path) - forced, 0)
        offered.update(p for p in deep if p > 0)
        right.update(range(1, ours + 1))
        accepted += ours
        cut = data.draw(st.integers(0, 2))
        tokens = ["a"] * (len(parents) + cut)
        chain = parents == list(range(-1, len(parents) - 1))
        by = [["", len(tokens)]] if tokens else []
        events.append(step([65] * (len(path) + 1), 1.0, drafted=guesses, accepted=ours, rows=9))
        events.append(Proposed(0, tokens, [] if chain else parents, by, path, "b", cut))
    score = scored(*events)
    assert score.positions == [
        (offered[p], right[p]) for p in range(1, max(offered, default=0) + 1)
    ]
    assert sum(each for _, each in score.positions) == score.accepted == accepted


def test_what_was_decided_last_is_kept() -> None:
    first = Decided(0, {"k": 4}, 1.5, "K=4 suits the costs", [])
    last = Decided(0, {"k": 2}, 1.2, "K=2 suits the acceptance", ["a wider pass would not pay"])
    kept = Decision({"k": 2}, 1.2, last.why, tuple(last.declined))
    assert scored(first, last).decision == kept


def test_a_lane_that_knows_little_is_folded_all_the_same() -> None:
    """Ids, gaps, rows and parts are missing: nothing is made up for them."""
    bare = replace(step([], 0.5, rows=0), origins=["sampled"] * 2, seconds={"total": 0.5})
    score = scored(Started(0, 9, "remote"), bare, bare, Finished(0, "end of text", []))
    assert (score.length, score.tokens, score.parts) == (4, [], {})
    assert scored(replace(bare, accepted=1)).positions == [], "of how many, nobody says"
    assert [commit.clock for commit in score.commits] == [0.5, 1.0]
    assert (score.tpot, score.tokens_per_forward, score.mean_rows) == (0.25, 1, 0)


def test_states_follow_the_events() -> None:
    score = Score()
    assert score.state == "queued"
    for event, state in (
        (Preparing("Loading..."), "queued"),
        (Started(0, 9, "m"), "prefill"),
        (Prefilled(0, 4, 9, 0.1), "prefill"),
        (step([65], 0.1), "decoding"),
        (Finished(0, "stopped", []), "stopped"),
    ):
        score.add(event)
        assert score.state == state
    failed = scored(Started(0, 9, "m"), Failed(0, "It broke."))
    assert (failed.state, failed.message) == ("failed", "It broke.")


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 8)), min_size=2))
def test_identities_hold_for_any_stream(blocks: list[tuple[int, int, int]]) -> None:
    events = [step([65] * n, float(t), drafted=d, accepted=min(n - 1, d)) for n, t, d in blocks]
    score = scored(*events)
    assert score.ttft + score.tpot * (len(score.tokens) - score.first_block) == pytest.approx(
        score.seconds
    )
    assert sum(score.parts.values()) == pytest.approx(score.seconds)
    assert score.length == len(score.tokens)
    assert score.commits[-1].clock == score.seconds


def test_a_record_that_tells_of_endless_guesses_takes_no_memory() -> None:
    wild = replace(step([1], 0.5), drafted=2**53 - 1, accepted=1)
    assert scored(Started(0, 9, "m"), wild, wild, Finished(0, "end of text", [])).positions[:2] == [
        (2, 2),
        (2, 0),
    ]
