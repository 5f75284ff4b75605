"""A score's figures are what its events come to; one column is the baseline."""

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


BEGUN = (Started(0, 100), Prefilled(0, 64, 0.5))
STEPS = (
    step(0, [0], 0.25, rows=100),
    step(0, [1, 2, 3], 0.5, 2, drafted=4, rows=5),
    step(0, [4], 0.25, drafted=4, rows=5),
    step(0, [5], 0.25),
    step(0, [6, 7], 0.5, 1, drafted=2, rows=3),
    replace(step(0, [10], 0.25, rows=2), spans=[]),
)
END = Finished(0, "token limit", [["sampled", "!"]])


def test_a_speculative_column_worked_out_by_hand() -> None:
    fed, filled = Fed(0, [["fixed", "Say: "]], 0.5), Filled(0, "a", "K", [["sampled", "k"]])
    score = scored(*BEGUN, fed, *STEPS, filled, END)
    assert (score.prompt_tokens, score.prefilled) == (100, 100)
    assert (score.ttft, score.seconds) == (1.25, 3.0)
    assert (score.steps, score.length, score.rows, score.mean_rows) == (6, 9, 116, 3.2)
    assert (score.drafted, score.accepted, score.acceptance) == (10, 3, 0.3)
    assert score.positions == [(3, 2), (3, 1), (2, 0), (2, 0)]
    assert score.values == {"a": "K"}
    assert score.text == "Say: abcdefghk!"
    assert [(m.clock, m.tokens, m.number) for m in score.moments] == [
        (1.0, 0, 0),
        (1.25, 1, 1),
        (1.75, 3, 2),
        (2.0, 1, 3),
        (2.25, 1, 4),
        (2.75, 2, 5),
        (3.0, 1, 6),
        (3.0, 0, 6),
        (3.0, 0, 6),
    ]


def test_tokens_that_a_grammar_forces_are_no_drafts() -> None:
    forced = step(0, [1, 2, 3, 4], 1.0, drafted=2, rows=6, origins=["forced"] * 3 + ["bonus"])
    score = scored(step(0, [1], 1.0), forced, step(0, [5, 6], 1.0, 1, drafted=2, rows=3))
    assert (score.forced, score.drafted, score.accepted, score.acceptance) == (3, 4, 1, 0.25)
    assert score.positions == [(2, 1), (2, 0)]


@given(st.data())
def test_guesses_are_counted_by_their_depth_in_any_trees(data: st.DataObject) -> None:
    offered, right, events = Counter[int](), Counter[int](), list[Event]()
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
        cut = data.draw(st.integers(0, 2))
        tokens = ["a"] * (len(parents) + cut)
        by = [["", len(tokens)]] if tokens else []
        events.append(step(0, [1] * (len(path) + 1), 1.0, ours, drafted=guesses, rows=9))
        events.append(Proposed(0, tokens, parents, by, path, "b", cut))
    score = scored(*events)
    longest = max(offered, default=0)
    assert score.positions == [(offered[p], right[p]) for p in range(1, longest + 1)]
    assert (score.drafted, score.accepted) == (offered.total(), right.total())


def test_a_record_that_tells_of_endless_guesses_takes_no_memory() -> None:
    wild = step(0, [1], 0.5, drafted=2**53 - 1, accepted=1)
    assert scored(wild, wild).positions[:2] == [(2, 2), (2, 0)]


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (BEGUN[1], "prefill"),
        (STEPS[0], "decoding"),
        (END, "done"),
        (Finished(0, "stopped", []), "stopped"),
        (Failed(0, "It broke."), "failed"),
    ],
)
def test_states_follow_the_events(event: Event, state: str) -> None:
    assert Score().state == "queued"
    board = board_of("kv", BEGUN[0], event)
    assert (board.scores[0].state, board.ended) == (state, state in ("done", "stopped", "failed"))


def test_plain_kv_reuse_is_the_baseline_wherever_it_stands() -> None:
    """On the race's own target if it runs there: another one is what it is compared with."""
    board = board_of("kv:grammar=date kv@int8 lookup kv")
    for failing, baseline in ((2, 3), (3, 1), (1, 0)):
        board.add(Failed(failing, "It broke."))
        assert board.baseline_index == baseline
