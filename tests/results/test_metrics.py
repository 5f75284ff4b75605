"""The figures people compare, against streams worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.events import Event, Failed, Finished, Prefilled, Preparing, Started, Step
from backend.results.metrics import Score


def step(
    tokens: list[int], total: float, *, drafted: int = 0, accepted: int = 0, rows: int = 1
) -> Step:
    """A step in which half the time is forward, a quarter drafting, the rest rest."""
    parts = {"draft": total / 4, "mask": 0.0, "forward": total / 2, "rest": total / 4}
    return Step(
        column=0,
        tokens=tokens,
        origins=["sampled"] * len(tokens),
        gaps=[float(token) for token in tokens],
        spans=[["sampled", chr(token)] for token in tokens],
        rows=rows,
        drafted=drafted,
        accepted=accepted,
        seconds={"total": total, **parts},
    )


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
    assert score.ttft == 0.75  # prefill and first step
    assert score.seconds == 2.25
    assert score.decode_seconds == 1.5
    assert score.tpot == 1.5 / 7
    assert score.tokens_per_second == pytest.approx(7 / 1.5)
    assert score.tokens_per_forward == 7 / 4
    assert (score.steps, score.rows) == (5, 114)
    assert (score.drafted, score.accepted, score.acceptance) == (10, 3, 0.3)
    assert score.rounds == {2: 1, 0: 1, 1: 1}, "a step without a draft is no round"
    assert score.parts == {"draft": 0.4375, "mask": 0.0, "forward": 0.875, "rest": 0.4375}
    assert score.text == "ABCDEFGH!"
    assert score.gaps == [65.0, 66.0, 67.0, 68.0, 69.0, 70.0, 71.0, 72.0]


def test_tokens_forced_in_the_first_step_are_not_decode_speed() -> None:
    score = scored(step([65, 66, 67], 1.0), step([68], 0.5), step([69, 70], 1.0))
    assert score.ttft == 1.0
    assert score.tpot == 0.5
    assert score.tokens_per_forward == 1.5


def test_a_stateless_column_pays_for_its_prefills_in_every_token() -> None:
    score = scored(
        Started(0, 70, "m"),
        Prefilled(0, 64, 70, 1.0),
        step([65], 0.5, rows=70),
        Prefilled(0, 64, 71, 1.0),
        step([66], 0.5, rows=71),
    )
    assert (score.ttft, score.tpot) == (1.5, 1.5)
    assert score.prefilled == 70
    assert score.tokens_per_forward == 1


def test_what_is_not_known_yet_is_zero() -> None:
    for events in ((), (Started(0, 9, "m"),), SPECULATIVE[:3], (Failed(0, "x"),)):
        score = scored(*events)
        figures = (score.tpot, score.tokens_per_second, score.tokens_per_forward)
        assert (*figures, score.acceptance) == (0, 0, 0, 0)
        assert score.speedup_over(scored(*SPECULATIVE)) == 0
        assert scored(*SPECULATIVE).speedup_over(score) == 0


def test_speedup_is_the_ratio_of_times_per_token() -> None:
    slow = scored(step([65], 1.0), step([66], 1.0))
    assert scored(*SPECULATIVE).speedup_over(slow) == 1.0 / (1.5 / 7)


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
    assert sum(score.rounds.values()) == sum(1 for _, _, d in blocks if d)
    assert sum(n * count for n, count in score.rounds.items()) == score.accepted
    assert sum(score.parts.values()) == pytest.approx(score.seconds)
