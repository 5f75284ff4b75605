"""What a step's view says is what its events say, worked out by hand and held against races."""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from boards import SPEC, TOKENIZER, board_of, started, step

from backend.events import CostsKnown, Event, Fed, Finished, Proposed, Started
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.results.steps import first_differences, moment_of, step_view
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

#: A tree of six, of which the grammar forced the first and ruled out the last; the path is a, d.
#:
#:     a - b - c
#:       - d - e - ...
#:     f
TREE = Proposed(
    column=0,
    tokens=["a", "b", "c", "d", "e", "f", "z"],
    parents=[-1, 0, 1, 0, 3, -1],
    by=[["grammar", 1], ["prompt lookup", 2], ["", 4]],
    path=[0, 3],
    chosen=" x",
    cut=1,
    allowed=[1, 4, 5, 6, 2000, 8, 9],
    top=[[["a", 1.0]], [["d", 0.5], ["b", 0.25]], [["e", 0.75], [" x", 0.0001]]],
)
KNOWN = ("proposed", "shape", "window", "hits", "parts", "expected", "masks")
OFFER = (
    "7 tokens guessed (grammar 1, prompt lookup 2, Prompt lookup 4): 2 were accepted, 1 not "
    "allowed by the grammar."
)
FATES = ["accepted", "rejected", "not reached", "accepted", "rejected", "rejected", "cut"]
COSTS = CostsKnown(0, [1, 8], [0.02, 0.034], 0.001, 0.002)


def tree_step(**more: object) -> Event:
    parts = {"draft": 0.004, "mask": 0.0, "forward": 0.025, "rest": 0.001, "total": 0.03}
    made = step(0, [1, 2, 3], 0.03, rows=8, drafted=5, accepted=1, calls=2, seconds=parts)
    origins, spans = ["forced", "drafted", "bonus"], [["forced", "a"], ["bonus", "d x"]]
    return replace(made, origins=origins, spans=spans, gaps=[inf, 2.0, 0.125], **more)


def board_with(*events: Event) -> Scoreboard:
    return board_of("lookup", started(0), COSTS, step(0, [0], 1.0), *events)


def test_a_tree_worked_out_by_hand() -> None:
    masks = [1e-4] * 7
    view = step_view(board_with(tree_step(masks=masks), TREE), 0, 1)
    assert view["title"] == "Pass 2 of 2: 3 tokens"
    assert view["shape"] == "tree"
    proposed = view["proposed"]
    assert [guess["fate"] for guess in proposed] == FATES
    assert [guess["depth"] for guess in proposed] == [1, 2, 3, 2, 3, 1, None]
    assert [guess["parent"] for guess in proposed] == [-1, 0, 1, 0, 3, -1, None]
    names = ["grammar", "prompt lookup", "prompt lookup", *["Prompt lookup"] * 4]
    assert [guess["by"] for guess in proposed] == names
    assert view["chosen"] == {"text": " x", "parent": 3}
    tokens = view["tokens"]
    assert [token["text"] for token in tokens] == ["a", "d", " x"]
    assert [token["origin"] for token in tokens] == ["forced", "drafted", "bonus"]
    assert [token["gap"] for token in tokens] == [None, 2.0, 0.125]
    assert tokens[2]["top"] == [["e", "75.0%", 0.75], [" x", "under 0.1%", 0.0001]]
    took = {"drafting": 4.0, "passes": 25.0, "other": 1.0}
    assert view["parts"] == [[part, ms, f"{part} {ms} ms"] for part, ms in took.items()]
    # T(8) is 34 ms at the contexts that costs are quoted at, a change of width 1, two calls 4.
    assert (view["expected"], view["rows"]) == (39.0, 8)
    assert view["masks"][1] == {"behind": "a", "allowed": 4, "ms": 0.1}
    assert [mask["allowed"] for mask in view["masks"]] == TREE.allowed
    assert view["sentences"] == [
        OFFER,
        "The model chose “ x”, not “e”.",
        "It took 30.0 ms for 3 tokens, over 8 rows.",
        "The grammar allowed 1 next token.",
    ]


def test_behind_the_end_of_the_text_nothing_was_rejected() -> None:
    """The text ended with its second token: what hung below that was not looked at."""
    ended = replace(TREE, chosen="", top=[])
    cut = replace(tree_step(), origins=["forced", "drafted"], tokens=[1, 2], gaps=[1.0, 1.0])
    view = step_view(board_with(cut, ended), 0, 1)
    fates = [guess["fate"] for guess in view["proposed"]]
    assert fates == [*FATES[:4], "not reached", *FATES[5:]]
    assert view["chosen"] is None
    assert len(view["tokens"]) == 2
    assert not any("The model" in sentence for sentence in view["sentences"])


def test_a_chain_that_was_right_to_its_end_and_lookaheads_window() -> None:
    right = Proposed(0, ["a", "b"], [], [["prompt lookup", 2]], [0, 1], "c")
    view = step_view(board_with(step(0, [1, 2, 3], 0.02, 2, rows=3, drafted=2), right), 0, 1)
    assert view["shape"] == "chain"
    guesses = [(guess["parent"], guess["fate"]) for guess in view["proposed"]]
    assert guesses == [(-1, "accepted"), (0, "accepted")]
    offer = "2 tokens guessed (prompt lookup 2): 2 were accepted."
    assert view["sentences"][:2] == [offer, "The model added “c”."]
    blank = replace(right, chosen="\n  ")
    view = step_view(board_with(step(0, [1, 2, 3], 0.02, 2, rows=3, drafted=2), blank), 0, 1)
    assert view["sentences"][1] == "The model added “⏎␣␣”.", "it was an empty pair of quotes"
    by, window = [["n-gram pool", 3]], [["p"], ["q", "r"]]
    seen = Proposed(0, ["a", "b", "c"], [-1, 0, 0], by, [], "x", window=window)
    view = step_view(board_with(step(0, [1], 0.02, rows=7, drafted=3), seen), 0, 1)
    assert (view["window"], view["hits"]) == (window, 2)
    said = "The pool offered 2 n-grams; 3 rows of the window searched for new ones."
    assert said in view["sentences"]


def test_moments_that_are_no_steps_have_a_view_too() -> None:
    board = board_of(
        "kv",
        started(0),
        Fed(0, 3, [["fixed", "Say: "]], 0.5),
        step(0, [0], 1.0),
        Finished(0, "token limit", [["sampled", "!"]]),
    )
    views = [step_view(board, 0, index) for index in range(3)]
    assert [view["title"] for view in views] == [
        "Fixed text of the program",
        "Pass 1 of 1: 1 token",
        "Text held back while it could be a stop string",
    ]
    assert [bool(view["tokens"]) for view in views] == [False, True, False]
    took = "It took 1.00 s for 1 token, with what was left of the prompt."
    assert views[1]["sentences"] == [took]
    assert moment_of(board.scores[0], 0) == 1
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match=f"3 moments, not one numbered {wrong}"):
            step_view(board, 0, wrong)
    with pytest.raises(IndexError, match="1 tokens, not one numbered 1"):
        moment_of(board.scores[0], 1)


def test_what_is_not_known_is_left_out() -> None:
    """A remote lane's step: neither ids, nor gaps, nor rows, nor parts, nor proposals."""
    bare = replace(step(0, [], 0.5), origins=["sampled"], spans=[["sampled", "a"]], rows=0)
    bare = replace(bare, seconds={"total": 0.5})
    view = step_view(board_of("kv", Started(0, 9, "remote"), bare), 0, 0)
    assert view["tokens"] == [{"text": "a", "origin": "sampled", "gap": None, "top": []}]
    assert view["sentences"] == ["It took 500 ms for 1 token, with what was left of the prompt."]
    assert not any(view[key] for key in KNOWN)


def test_of_a_recording_that_holds_anything_some_entries_are_shown() -> None:
    """What a page draws is bounded, and what is said counts all."""
    many = 6_000
    path, allowed = list(range(many)), [1] * (many + 1)
    chain = Proposed(0, ["a"] * many, [], [["", many]], path, "b", allowed=allowed)
    long = step(0, [1] * (many + 1), 0.02, rows=7, drafted=many)
    wide = replace(chain, parents=[-1] * many, path=[0], window=[["w"] * many])
    for seen, took in ((chain, long), (wide, step(0, [1, 2], 0.02, rows=7, drafted=many))):
        view = step_view(board_with(took, seen), 0, 1)
        assert len(json.dumps(view)) < 200_000
        assert view["sentences"][0].startswith("6,000 tokens guessed")


def test_the_first_differences_lead_to_the_moments_where_they_are() -> None:
    """The third column agrees; the second departs in its second block, at the fifth token."""
    events: list[Event] = []
    for column, blocks in enumerate(([[1], [2], [3], [4]], [[1, 2, 3], [9]], [[1, 2], [3, 4]])):
        events.append(Started(column, 5, "m", TOKENIZER, SPEC))
        events += [step(column, block, 0.1) for block in ([0], *blocks)]
    board = board_of("kv lookup lookahead", *events)
    assert first_differences(board) == [(1, 2)]
    assert step_view(board, 1, 2)["sentences"][-1] == (
        "From token 5 on it differs from KV reuse, which wrote “e”."
    )
    assert not any("differs" in s for s in step_view(board, 1, 1)["sentences"])
    assert moment_of(board.scores[0], 4) == 4


def test_a_step_is_shown_without_a_walk_through_the_steps_before_it() -> None:
    """Each once walked through all moments of its column, so that a page of 220,000 steps was not
    written within a minute.
    """

    class Unwalked(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("all moments are walked through")

    class Unsorted(dict[int, Any]):
        __iter__ = Unwalked.__iter__

    blocks = (step(0, [i, i + 1], 0.1) for i in range(20))
    board = board_of("kv", started(0), COSTS, *blocks)
    for column, score in enumerate(board.scores):
        plain = [step_view(board, column, index) for index in range(len(score.moments))]
        score.moments, score.step_at = Unwalked(score.moments), Unsorted(score.step_at)
        for index, view in enumerate(plain):
            assert step_view(board, column, index) == view


@pytest.mark.parametrize(
    "prompt", ["Tell me", 'A {{gen "a" max_tokens=9}} b {{select "c" "x|y"}}.']
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_moment_of_any_race_has_a_view_in_plain_json(prompt: str, temperature: float) -> None:
    names = ("kv", "lookup", "lookahead:auto=off", "speculative:k=3", "stateless", "lookup:k=3")
    columns = [parse_column(name) for name in names]
    columns[-1] = columns[-1].with_settings({"grammar": "person"})
    board = Scoreboard(columns)
    request = Request(prompt, 40, Sampling(temperature, seed=2), top=3)
    race = Race(request, tuple(columns), ModelSpec("fake-priced", "fake"))
    race.run(LoadedModels(), board.add, lambda: False)
    keys = set()
    for column, score in enumerate(board.scores):
        shown, expected = 0, 0.0
        for index, moment in enumerate(score.moments):
            view = step_view(board, column, index)
            assert json.loads(json.dumps(view, allow_nan=False)) == view
            keys.add(tuple(view))
            shown += len(view["tokens"])
            expected += view["expected"] or 0.0
            assert len(view["tokens"]) == moment.tokens
            accepted = [guess["text"] for guess in view["proposed"] if guess["fate"] == "accepted"]
            own = [t["text"] for t in view["tokens"] if t["origin"] in ("forced", "drafted")]
            assert accepted == own
            assert sum(part for _, part, _ in view["parts"]) == pytest.approx(
                1e3 * score.step_at[index].seconds["total"] if index in score.step_at else 0.0
            )
            if not temperature:
                assert all(token["top"][0][0] == token["text"] for token in view["tokens"])
        assert shown == score.length
        assert expected == pytest.approx(1e3 * score.expected_seconds, rel=1e-3)
    assert len(keys) == 1
