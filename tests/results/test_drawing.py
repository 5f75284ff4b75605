"""The board's drawing only grows, and says what became of each guess. That it says what the result
says, test_agreement.py shows.
"""

from scoreboards import LONG, LONG_PAIRS, board_of, drawn_steps, started, step, written

from backend.events import Event, Failed, Finished, Proposed
from backend.results.drawing import Drawer
from backend.types import Request

REQUEST = Request("What?")


def test_steps_only_grow_and_come_to_the_whole() -> None:
    growing = board_of("kv lookup")
    drawer, before = Drawer(growing, REQUEST), ["", ""]
    for event in (*written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1)):
        growing.add(event)
        steps = [column["steps"] for column in drawer.draw()["columns"]]
        assert all(new.startswith(old) for new, old in zip(steps, before, strict=True))
        before = steps
    assert drawer.draw() == Drawer(growing, REQUEST).draw()


#: A tree of six, of which the grammar forced the first and ruled out the last; the path is a, d.
#:
#:     a - b - c
#:       - d - e - ...
#:     f
TREE = Proposed(
    column=0,
    tokens=["a", "b", "c", "d", "e", "f", "z"],
    parents=[-1, 0, 1, 0, 3, -1],
    by=[["grammar", 1], ["prompt lookup", 2], ["draft", 4]],
    path=[0, 3],
    chosen=" x",
    cut=1,
    allowed=[1, 4, 5, 6, 2000, 8, 9],
    top=[[["a", 1.0]], [["d", 0.5], ["b", 0.25]], [["e", 0.75], [" x", 0.0001]]],
)


def test_a_step_says_what_became_of_each_guess_which_may_come_late() -> None:
    seconds = {"total": 0.1, "draft": 0.02, "mask": 0.003, "forward": 0.07, "rest": 0.007}
    wide = step(0, [1, 2, 3], 0.1, 2, rows=7, seconds=seconds)
    events: list[Event] = [started(0), step(0, [0], 1.0), wide]
    growing = board_of("lookup", *events)
    drawer = Drawer(growing, REQUEST)
    assert len(drawn_steps(drawer.draw(), 0)) == 1, "the last one is held back"
    growing.add(TREE)
    growing.add(Finished(0, "token limit", []))
    clock, amount, _, detail = drawn_steps(drawer.draw(), 0)[-1]
    assert (clock, amount) == (0.1, 3)
    assert (detail["pass"], detail["rows"]) == (2, 7)
    assert (detail["ms"], detail["draft"], detail["mask"]) == (100, 20, 3)
    assert detail["guesses"] == [
        ["a", "grammar", "accepted", 1],
        ["b", "prompt lookup", "rejected", 2],
        ["c", "prompt lookup", "not reached", 3],
        ["d", "draft", "accepted", 2],
        ["e", "draft", "rejected", 3],
        ["f", "draft", "rejected", 1],
        ["z", "draft", "cut", 0],
    ]
    assert (detail["chosen"], detail["allowed"]) == (" x", 1)
    assert detail["top"][1] == [["d", 0.5], ["b", 0.25]]


def test_a_race_that_was_refused_says_so_once() -> None:
    """Four cards had the same error."""
    board = board_of("kv lookup", Failed(0, "Too long."), Failed(1, "Too long."))
    drawn = Drawer(board, REQUEST).draw()
    assert drawn["status"] == "Too long."
    assert [each["message"] for each in drawn["columns"]] == ["", ""]
