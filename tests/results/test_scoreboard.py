"""A score's figures are what its events come to, whatever their order; columns have names of their
own, and one of them is the baseline.
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoreboards import board_of, step

from backend.events import Event, Failed, Fed, Filled, Finished, Prefilled, Proposed, Started
from backend.results.scoreboard import Score


def scored(*events: Event) -> Score:
    score = Score()
    for event in events:
        score.add(event)
    return score


SPECULATIVE = (
    Started(0, 100, "a model"),
    Prefilled(0, 64, 100, 0.5),
    step(0, [0], 0.25, rows=100),
    step(0, [1, 2, 3], 0.5, 2, drafted=4, rows=5),
    step(0, [4], 0.25, drafted=4, rows=5),
    step(0, [5], 0.25),
    step(0, [6, 7], 0.5, 1, drafted=2, rows=3),
    Finished(0, "token limit", [["sampled", "!"]]),
)


def test_a_speculative_column_worked_out_by_hand() -> None:
    score = scored(*SPECULATIVE)
    assert (score.state, score.reason, score.started.model) == ("done", "token limit", "a model")
    assert (score.prompt_tokens, score.prefilled) == (100, 100)
    assert (score.ttft, score.seconds) == (0.75, 2.25)
    assert (score.steps, score.rows, score.mean_rows) == (5, 114, 3.5)
    assert (score.drafted, score.accepted, score.acceptance) == (10, 3, 0.3)
    assert score.positions == [(3, 2), (3, 1), (2, 0), (2, 0)]
    assert score.text == "abcdefgh!"


def test_the_moments_of_a_column_replay_it() -> None:
    """Text and tokens come back from them alone, each at its time on the clock."""
    fed, filled = Fed(0, 3, [["fixed", "Say: "]], 0.5), Filled(0, "a", "K", [["sampled", "k"]])
    silent = replace(step(0, [10], 0.25, rows=2), spans=[])
    beginning, chunk, *rest = SPECULATIVE
    score = scored(beginning, fed, chunk, *rest[:-1], silent, filled, rest[-1])
    assert [(m.clock, m.tokens, m.number) for m in score.moments] == [
        (0.5, 0, 0),
        (1.25, 1, 1),
        (1.75, 3, 2),
        (2.0, 1, 3),
        (2.25, 1, 4),
        (2.75, 2, 5),
        (3.0, 1, 6),
        (3.0, 0, 6),
        (3.0, 0, 6),
    ]
    assert score.text == "Say: abcdefghk!"
    assert score.values == {"a": "K"}


def test_tokens_forced_in_the_first_step_are_decode_speed_and_others_are_not() -> None:
    """A grammar's lane begins tokens ahead; tokens in a server's first chunk took their time."""
    first, later = step(0, [1, 2, 3], 1.0), (step(0, [4], 0.5), step(0, [5, 6], 1.0))
    score = scored(first, *later)
    assert (score.ttft, score.ahead) == (1.0, 0)
    ahead = scored(replace(first, origins=["sampled", "forced", "forced"]), *later)
    assert (ahead.ttft, ahead.ahead) == (1.0, 2)


def test_a_stateless_column_pays_for_its_prefills_in_every_token() -> None:
    first = (Prefilled(0, 64, 70, 1.0), step(0, [1], 0.5, rows=70))
    second = (Prefilled(0, 64, 71, 1.0), step(0, [2], 0.5, rows=71))
    score = scored(Started(0, 70, "m"), *first, *second)
    assert (score.ttft, score.seconds) == (1.5, 3.0)
    assert score.prefilled == 70


def test_what_is_not_known_is_zero() -> None:
    for events in ((), (Started(0, 9, "m"),), SPECULATIVE[:3], (Failed(0, "x"),)):
        score = scored(*events)
        assert (score.acceptance, score.mean_rows) == (0, 0)
    bare = replace(step(0, [], 0.5, rows=0), origins=["sampled"] * 2, seconds={"total": 0.5})
    score = scored(Started(0, 9, "remote"), bare, bare, Finished(0, "end of text", []))
    assert (score.length, score.tokens) == (4, [])
    assert score.mean_rows == 0


def test_tokens_that_a_grammar_forces_are_no_drafts() -> None:
    forced = step(0, [1, 2, 3, 4], 1.0, drafted=2, rows=6, origins=["forced"] * 3 + ["bonus"])
    score = scored(step(0, [1], 1.0), forced, step(0, [5, 6], 1.0, 1, drafted=2, rows=3))
    assert (score.forced, score.drafted, score.accepted, score.acceptance) == (3, 4, 1, 0.25)
    assert score.positions == [(2, 1), (2, 0)]


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
        ours = max(len(path) - forced, 0)
        offered.update(len(each) - forced for each in paths[forced:])
        right.update(range(1, ours + 1))
        accepted += ours
        cut = data.draw(st.integers(0, 2))
        tokens = ["a"] * (len(parents) + cut)
        chain = parents == list(range(-1, len(parents) - 1))
        by = [["", len(tokens)]] if tokens else []
        events.append(step(0, [1] * (len(path) + 1), 1.0, ours, drafted=guesses, rows=9))
        events.append(Proposed(0, tokens, [] if chain else parents, by, path, "b", cut))
    score = scored(*events)
    assert score.positions == [
        (offered[p], right[p]) for p in range(1, max(offered, default=0) + 1)
    ]
    assert sum(each for _, each in score.positions) == score.accepted == accepted
    assert sum(each for each, _ in score.positions) == score.drafted, "they average to the whole"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 8)), min_size=2))
def test_identities_hold_for_any_stream(blocks: list[tuple[int, int, int]]) -> None:
    events = [step(0, [1] * n, float(t), min(n - 1, d), drafted=d) for n, t, d in blocks]
    score = scored(*events)
    assert score.seconds == score.moments[-1].clock
    assert score.length == len(score.tokens) == sum(m.tokens for m in score.moments)


def test_a_record_that_tells_of_endless_guesses_takes_no_memory() -> None:
    wild = step(0, [1], 0.5, drafted=2**53 - 1, accepted=1)
    assert scored(Started(0, 9, "m"), wild, wild).positions[:2] == [(2, 2), (2, 0)]


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Started(0, 9, "m"), "prefill"),
        (Prefilled(0, 4, 9, 0.1), "prefill"),
        (step(0, [1], 0.1), "decoding"),
        (Finished(0, "token limit", []), "done"),
        (Finished(0, "stopped", []), "stopped"),
        (Failed(0, "It broke."), "failed"),
    ],
)
def test_states_follow_the_events(event: Event, state: str) -> None:
    assert Score().state == "queued"
    board = board_of("kv", Started(0, 9, "m"), event)
    assert (board.scores[0].state, board.ended) == (state, state in ("done", "stopped", "failed"))


def test_plain_kv_reuse_is_the_baseline_wherever_it_stands() -> None:
    """On the race's own target if it runs there: another one is what it is compared with."""
    board = board_of("kv:grammar=date kv@int8 lookup kv")
    for failing, baseline in ((2, 3), (3, 1), (1, 0)):
        board.add(Failed(failing, "It broke."))
        assert board.baseline_index == baseline
