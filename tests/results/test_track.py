"""The track: where lanes stand at the photo finish, who has which place, and who has none."""

import json

import pytest
from boards import LONG, SINGLE, board_of, started, step, written

from backend.events import Event, Fed, Finished
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import frozen, lead, stands
from backend.results.track import (
    early,
    goal_of,
    length_at,
    photo_finish,
    place,
    position,
    standing,
    unit_of,
)
from backend.types import Request
from backend.web.view import view

#: A first token after one second, and six more of which each pass commits two.
QUICK = written(1, [[1, 2], [3, 4], [5, 6]], 0.1)


def lanes(board: Scoreboard) -> list[int]:
    """Where the lanes stand at the photo finish."""
    finish = photo_finish(board)
    assert finish is not None
    return [position(board, i, finish.seconds) for i in range(len(board.scores))]


def places(board: Scoreboard) -> list[int]:
    finish = photo_finish(board)
    assert finish is not None
    return [place(board, index, finish) for index in range(len(board.columns))]


def settled(board: Scoreboard, index: int) -> float:
    """How long the lane is drawn from the photo finish on."""
    return length_at(board, index, photo_finish(board))


def test_lanes_stand_where_their_own_clocks_read_the_winner_s_time() -> None:
    """Every bar ended full, and the picture of a race held no result."""
    board = board_of("kv speculative", *written(0, SINGLE, 0.1), *QUICK)
    finish = photo_finish(board)
    assert finish is not None
    assert (finish.column, finish.length) == (1, 7)
    assert finish.seconds == pytest.approx(0.3)
    assert [score.length for score in board.scores] == [7, 7]
    assert lanes(board) == [4, 7]
    assert places(board) == [2, 1]


def test_chance_in_reading_the_prompt_decides_no_place() -> None:
    """ "Grammar finished first; Speculative wrote fastest": of two seconds the prompt took one of
    them 0.22 and the other 0.33. What a cache saves of the prompt counts.
    """
    late = [started(1), step(1, [0], 3.0), *QUICK[2:]]
    for names, winner in (("kv lookup", 1), ("kv:cache=session lookup", 0)):
        board = board_of(names, *written(0, SINGLE, 0.1), *late)
        finish = photo_finish(board)
        assert finish is not None
        assert finish.column == winner
        ahead = 3 if winner else 7
        assert frozen(board) == ("" if winner else "Bars stop when KV reuse finishes.")
        assert stands(board, finish).endswith(f"{ahead} tokens ahead of {board.name(1 - winner)}")
        columns = view(board, race=1, goal=7)["columns"]
        firsts = [json.loads(column["rounds"].partition("\n")[0])[0] for column in columns]
        assert firsts == ([0.0, 0.0] if winner else [1000.0, 3000.0])


def test_the_finish_is_known_as_soon_as_the_winner_is_done_and_does_not_move() -> None:
    slow = written(0, SINGLE, 0.1)
    seen = set()
    for count in range(5, len(slow) + 1):
        board = board_of("kv speculative", *slow[:count], *QUICK)
        seen.add(photo_finish(board))
    assert len(seen) == 1
    assert None not in seen


def test_nobody_finishes_first_while_a_lane_that_runs_may_still_be_quicker() -> None:
    """ "Lookahead finishes first" became "Speculative finishes first" 0.4 s later. Columns take
    turns: whose text ends first in the room may have had more of its own time.
    """
    board = board_of("kv lookup", *written(0, SINGLE, 0.1), started(1), step(1, [0], 1.0))
    assert photo_finish(board) is None, "it has 0.6 s of its own clock to overtake"
    quick = [step(1, [t], 0.01) for t in range(6)]
    for event in (*quick, Finished(1, "end of text", [])):
        board.add(event)
    finish = photo_finish(board)
    assert finish is not None
    assert finish.column == 1
    late = board_of("kv lookup", *written(0, SINGLE, 0.1), started(1), step(1, [0], 1.0))
    late.add(step(1, [1], 9.0))
    finish = photo_finish(late)
    assert finish is not None
    assert finish.column == 0, "it has passed that clock, and is behind"


def test_a_column_that_stops_by_design_does_not_finish_first() -> None:
    """Stateless writes a few tokens by its own setting; reaching them is no finish. It had a place
    in one race and none in another, as it stopped after the winner or before.
    """
    short = [started(0), *[step(0, [i], 0.01) for i in range(3)], Finished(0, "photo finish", [])]
    board = board_of("stateless kv", *short, *written(1, SINGLE, 0.1))
    finish = photo_finish(board)
    assert finish is not None
    assert finish.column == 1
    assert places(board) == [2, 1]
    shown = view(board, race=1, goal=7)
    assert shown["columns"][0]["lane"] == "stops at 3 tokens"
    assert shown["track"]["axis"] == "Tokens at KV reuse's finish"


def test_a_shorter_text_that_ends_behind_the_leader_does_not_finish_the_race() -> None:
    short = written(0, [[1]], 0.3)  # two tokens after 1.3 s, when the other one has seven
    board = board_of("grammar kv", *short, *QUICK[:-1])
    assert photo_finish(board) is None
    board.add(QUICK[-1])
    assert lanes(board) == [2, 7]


def test_a_race_that_was_stopped_early_has_no_finish_and_keeps_its_scale() -> None:
    """Bars rescaled: 100 % after nine of 128 tokens."""
    halves = [*written(0, SINGLE, 0.1)[:4], Finished(0, "stopped", [])]
    board = board_of("kv", *halves)
    shown = view(board, race=1, goal=128)
    assert shown["phase"] == "ended"
    assert shown["track"] == {
        "unit": "token",
        "flag": 128,
        "end": "128 tokens",
        "about": "",
        "speeds": None,
        "axis": "",
        "finish": None,
        "now": None,
        "noisy": False,
    }
    assert [column["place"] for column in shown["columns"]] == [""]


def test_equal_lanes_share_a_place_and_a_failed_one_has_none() -> None:
    board = board_of("kv kv kv", *written(0, SINGLE, 0.2), *written(2, SINGLE, 0.2), *QUICK)
    assert places(board) == [2, 1, 2]
    board.scores[2].state = "failed"
    assert places(board) == [2, 1, 0]


def test_a_program_s_lanes_are_measured_in_the_characters_of_its_text() -> None:
    """Its columns feed what others generate, so their tokens do not compare."""
    prompt = 'Colour: {{select "colour" "red|blue"}}. {{repeat 2}}ab{{end}}'
    assert goal_of(Request(prompt, 64)) == len("Colour: . abab")
    assert goal_of(Request("Hello", 64)) == 64
    fixed = [["fixed", "Colour: "]]
    feeding = [started(0), Fed(0, 3, fixed, 0.1), *written(0, SINGLE, 0.1)[1:]]
    board = board_of("kv single", *feeding, *written(1, SINGLE, 0.5))
    assert unit_of(board) == "character"
    assert lanes(board) == [len("Colour: ") + 7, 2]


def test_a_program_s_places_are_in_the_order_of_its_times() -> None:
    """Three columns were "=2nd", with 422 ms, 531 ms and 1.90 s."""

    def program(column: int, cost: float) -> list[Event]:
        fixed = [["fixed", "Colour: "]]
        return [started(column), Fed(column, 3, fixed, cost), *written(column, SINGLE, cost)[1:]]

    names, costs = "kv speculative no_reuse single", (0.2, 0.1, 0.25, 0.9)
    board = board_of(names, *(e for i, cost in enumerate(costs) for e in program(i, cost)))
    shown = [each["place"] for each in view(board, race=1, goal=8)["columns"]]
    assert shown == ["2nd", "1st", "3rd", "4th"]


def test_who_leads_is_told_at_a_clock_that_all_have_reached() -> None:
    """Columns take turns, so the one whose turn it was stood further than it would at equal
    compute: 0.32 s after their first tokens one has three and the other four.
    """
    board = board_of("kv lookup", started(0), started(1))
    for column, cost in [(0, 0.16)] * 3 + [(1, 0.1)] * 5:
        board.add(step(column, [1], cost))
    now = standing(board)
    assert now is not None
    assert (now.column, now.seconds, now.length) == (1, pytest.approx(0.32), 4)
    assert [place(board, i, now) for i in range(2)] == [2, 1]
    assert stands(board, now) == "Prompt lookup leads KV reuse by"
    assert lead(board) == "", "a token or two are chance"
    assert standing(board_of("kv lookup", started(0), started(1))) is None


def test_places_and_speeds_come_once_they_are_more_than_chance() -> None:
    """ "2nd" three times and "1.11x" beside dashes, where each had one token. And behind the winner
    there was a third that proved faster than the second: they had not written all yet.
    """
    events = [started(0), started(1)]
    events += [step(column, [1], 0.1) for _ in range(7) for column in range(2)]
    board = board_of("kv lookup", *events)

    def shown() -> list[tuple[str, str]]:
        return [(each["place"], each["speed"]) for each in view(board, race=1, goal=48)["columns"]]

    assert shown() == [("", ""), ("", "")]
    for column in range(2):
        board.add(step(column, [1], 0.1))
    one = "1\N{MULTIPLICATION SIGN}"
    assert shown() == [("=1st", ""), ("=1st", "")], "it would not be sure"
    for column in [0, 1] * 32:
        board.add(step(column, [1], 0.1))
    assert shown() == [("=1st", one), ("=1st", "1.00\N{MULTIPLICATION SIGN}")]


def test_from_the_finish_on_lanes_and_places_are_those_of_the_speed_ups() -> None:
    """ "Three clocks": bars were of the winner's finish and speed-ups of whole texts, up to 12 %
    apart; "third place beats second": one that was behind then wrote faster from there on. And "a
    changed result": bars went there when all had ended, seconds after the finish.
    """
    quick, steady = [0.1] * 12, [0.24] * 12
    late = [0.35] * 4 + [0.02] * 8
    for costs, places in ((steady, ["3rd", "1st", "2nd"]), (late, ["3rd", "1st", "2nd"])):
        events: list[Event] = []
        for column, each in enumerate(([0.25] * 12, quick, costs)):
            steps = [step(column, [t], cost) for t, cost in enumerate(each, 1)]
            first = [started(column), step(column, [0], 1.0)]
            events += [*first, *steps, Finished(column, "token limit", [])]
        for seen in (events[:-1], events):
            board = board_of("kv lookup lookahead", *seen)
            shown = view(board, race=1, goal=13)
            assert shown["phase"] == ("ended" if seen is events else "racing")
            assert shown["track"]["axis"] == "Speed after the prompt"
            assert shown["track"]["speeds"] == board.speedup(1)
            assert [each["place"] for each in shown["columns"]] == places
            wanted = [13 * speed / board.speedup(1) for speed in (1, *map(board.speedup, (1, 2)))]
            assert [each["settled"] for each in shown["columns"]] == pytest.approx(wanted, abs=0.06)


def test_no_lane_has_a_place_behind_a_slower_one() -> None:
    """Grammar was 1st with 1.79 and Speculative 2nd with 1.81, their bars equal: a grammar's text
    may end a token earlier.
    """
    events: list[Event] = []
    for column, (cost, tokens) in enumerate(((0.2, 12), (0.1, 12), (0.102, 11))):
        steps = [step(column, [t], cost) for t in range(1, tokens)]
        first = [started(column), step(column, [0], 1.0)]
        events += [*first, *steps, Finished(column, "end of text", [])]
    board = board_of("kv lookup lookahead", *events)
    finish = photo_finish(board)
    assert finish is not None
    assert finish.column == 2
    assert board.speedup(1) > board.speedup(2)
    columns = view(board, race=1, goal=12)["columns"]
    assert [each["place"] for each in columns] == ["3rd", "=1st", "=1st"]
    assert columns[1]["settled"] == columns[2]["settled"] == finish.length


def test_lanes_stay_as_at_the_finish_where_a_lane_behind_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a noisy race Speculative finished first with 1.46 and Grammar had 2.32: both bars were
    full, both first, and "bars match the speed-ups".
    """
    events: list[Event] = []
    for column, cost in enumerate((0.2, 0.1, 0.12)):
        steps = [step(column, [t], cost) for t in range(1, 12)]
        first = [started(column), step(column, [0], 1.0)]
        events += [*first, *steps, Finished(column, "end of text", [])]
    board = board_of("kv lookup lookahead", *events)
    monkeypatch.setattr(board, "speedup", [1.0, 1.46, 2.32].__getitem__)
    finish = photo_finish(board)
    assert finish is not None
    lengths = [settled(board, i) for i in range(3)]
    assert lengths == [position(board, i, finish.seconds) for i in range(3)]
    shown = view(board, race=1, goal=12)
    assert [each["place"] for each in shown["columns"]] == ["3rd", "1st", "2nd"]
    assert [each["settled"] for each in shown["columns"]] == [None] * 3
    assert shown["track"]["axis"] == "Tokens at Prompt lookup's finish"
    assert frozen(board) == "Bars stop when Prompt lookup finishes."


def test_a_grammar_that_answers_something_else_has_no_place() -> None:
    """A grammar for persons wrote one in answer to a question about primes, and was "1st"."""
    names = "kv lookup grammar:grammar=person"
    slow, quick = written(0, [[1], [2], [3], [4]], 0.1), written(1, [[1], [2, 3], [4]], 0.1)
    board = board_of(names, *slow, *quick, *written(2, [[9, 9, 9, 9]], 0.1))
    assert places(board) == [2, 1, 0]
    shown = view(board, race=1, goal=4)["columns"]
    assert [each["place"] for each in shown] == ["2nd", "1st", ""]
    assert shown[2]["lane"] == "different text: not ranked"
    assert shown[2]["settled"] == pytest.approx(min(1, board.speedup(2) / board.speedup(1)) * 5)
    assert (shown[2]["pace"], shown[2]["pace_text"]) == ("other", "different text"), "nor a verdict"
    kept = board_of(names, *slow, *quick, *written(2, [[1, 2, 3, 4]], 0.1))
    assert places(kept) == [3, 2, 1], "its text is the same"


def test_a_replay_is_told_how_the_race_stood_at_each_moment() -> None:
    """A replay told nothing until its end: no leader, no places, a title in place of both."""
    slow = [step(0, [t], 0.2) for t in range(40)]
    quick = [*[step(1, [t], 0.3) for t in range(10)], *[step(1, [t], 0.05) for t in range(10, 40)]]
    board = board_of(
        "kv lookup", started(0), *slow, *[Finished(0, "end of text", [])], started(1), *quick
    )
    assert view(board, race=1, goal=40)["story"] == [], "there is no finish yet"
    board.add(Finished(1, "end of text", []))
    finish = photo_finish(board)
    assert finish is not None
    story = view(board, race=1, goal=40)["story"]
    times = [ms for ms, _ in story]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1e3 * finish.seconds, abs=0.1)
    told = [said for _, said in story]
    assert told[0].startswith("KV reuse leads Prompt lookup by")
    assert told[-1].startswith("Prompt lookup finishes first, ")
    assert "KV reuse and Prompt lookup are level" in told
    for ms, said in story:
        lengths = [position(board, i, ms / 1e3 + 1e-6) for i in range(2)]
        leaders = ["KV reuse leads", "Prompt lookup leads"]
        if lengths[0] == lengths[1]:
            assert said.endswith("are level")
        elif said != told[-1]:
            assert said.startswith(leaders[lengths.index(max(lengths))])
        assert max(lengths) >= 8, "a token or two are chance"


def test_text_that_a_program_is_given_is_no_lead() -> None:
    """ "Single generation leads by 127 characters" while it waited for its first token: it was
    last in the end.
    """
    given = [started(1), Fed(1, 3, [["fixed", "a long given text"]], 0.1)]
    plain = [started(0), Fed(0, 1, [["fixed", "given"]], 0.1), *(step(0, t, 0.1) for t in LONG)]
    board = board_of("kv single", *plain[:3], *given)
    assert early(board)
    assert lead(board) == ""
    alone = view(board_of("kv single", *plain[:3], started(1)), race=1, goal=17)["track"]
    assert alone["now"] == 0, "a lane that is drawn as far as it is goes back once others begin"
    assert view(board, race=1, goal=17)["columns"][1]["place"] == ""
    for event in (*plain[3:], Finished(0, "end of program", []), step(1, [1], 20.0)):
        board.add(event)
    board.add(Finished(1, "end of program", []))
    said = [each for _, each in view(board, race=1, goal=17)["story"]]
    assert not any(each.startswith("Single generation leads") for each in said)


def test_bars_of_a_program_are_as_its_times() -> None:
    """One that took 2.46 times as long had a bar of 60 %."""
    events: list[Event] = []
    for column, cost in enumerate((0.1, 0.25)):
        events += [started(column), Fed(column, 1, [["fixed", "given"]], 5 * cost)]
        events += [step(column, [t], cost) for t in range(10)]
        events.append(Finished(column, "end of program", []))
    board = board_of("kv no_reuse", *events)
    quick, slow = (settled(board, i) for i in range(2))
    assert slow / quick == pytest.approx(1 / 2.5, abs=0.01)
    assert frozen(board) == "The shorter the time, the longer the bar."
