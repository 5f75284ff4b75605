"""No two of headline, marks, rows, table, files, picture, drawing, API and production's text of one
race contradict each other, at any moment. The rules stand here once; simulated boards with every
ending, and races on the fake engine in any order of columns, are held to them.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import accumulate, combinations, cycle, pairwise
from math import isclose
from textwrap import wrap
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from race_records import MADE
from race_runs import FAKE, board_after
from scoreboards import amount, drawn_steps, step

from backend.events import (
    Conditions,
    Decided,
    Event,
    Failed,
    Fed,
    Finished,
    Judged,
    Reason,
    Repeated,
    Served,
    Started,
    Step,
)
from backend.export.next_step import next_step
from backend.export.picture import WINNER, picture_of
from backend.export.production import snippets
from backend.export.tables import markdown
from backend.grammar.sources import GrammarSource
from backend.racing.hosts import Host
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.records.record import Hardware, RaceRecord
from backend.results.drawing import Drawer
from backend.results.figures import FIGURES, likely, listed, span
from backend.results.result import NOISY, Result, Row, result_of
from backend.results.scoreboard import Score, Scoreboard
from backend.results.sentences import comparison, doubt, headline, mark, outcome, why
from backend.strategies.column import Column, parse_column
from backend.types import ModelSpec, Request, Sampling
from page.api import report

#: Of what its interval must show.
SHOWN = {"faster", "slower", "unclear", "short"}


def agree(
    columns: Sequence[Column], events: Sequence[Event], request: Request, target: ModelSpec
) -> None:
    """The rules, of a race after these events."""
    board = board_after(columns, events)
    result = result_of(board)
    record = RaceRecord(request, tuple(columns), target, MADE, Hardware(), (), tuple(events))
    who_wins(board, result, headline(board, result))
    which_texts_are_the_same(board, result, headline(board, result))
    for row in result.rows:
        figures_fit_together(board, result, row)
    all_show_the_same(board, result, record)
    production_follows(board, result, record)


def who_wins(board: Scoreboard, result: Result, sentence: str) -> None:
    """Nobody before all have ended by themselves and the noise is known; then the fastest that is
    shown to be faster, with the baseline's whole text. Failures come first.
    """
    rows, base = result.rows, result.baseline
    leaders = [rows[i] for i in result.leaders]
    cut = any(row.score.reason == "stopped" for row in rows)
    final = board.ended and not cut and board.conditions is not None
    if not final or board.conditions is None or board.conditions.others > NOISY:
        assert not leaders
        assert not {row.verdict for row in rows} & SHOWN
    same = [r for r in rows if base and r.text == "same" and r.score.text == base.score.text]
    assert bool(leaders) == any(row.verdict == "faster" for row in same)
    if base and leaders:
        names, much = [r.name for r in leaders], [likely(r.speedup) for r in leaders]
        verb = "wins" if len(leaders) == 1 else "share the lead"
        assert f"{listed(names)} {verb}: {listed(much)} as fast as {base.name}." in sentence
        assert leaders[0].verdict == "faster"
        assert all(row in same and row.verdict in ("faster", "unclear") for row in leaders)
        best = leaders[0].speedup
        assert all(row.speedup.high >= best.low for row in leaders)
        assert not any(row.verdict == "faster" and row.speedup.low > best.high for row in same)
    else:
        assert " as fast as " not in sentence
    shown = {row.verdict for row in rows} & SHOWN
    assert "too short" not in sentence or shown == {"short"}
    told = board.ended and any(row.state != "failed" for row in rows)
    assert ("Too noisy" in sentence) == (told and result.doubt == "noisy")
    assert bool(doubt(board, result)) == (result.doubt == "busy")
    failed = [row for row in rows if row.state == "failed"]
    assert all(row.message and not row.verdict and not row.speedup.value for row in failed)
    if len(failed) == len(rows):
        messages = {row.message for row in rows}
        assert sentence == (messages.pop() if len(messages) == 1 else "No column finished.")
    elif board.ended:
        assert sentence.startswith(
            f"{listed([row.name for row in failed])} failed." if failed else ""
        )
        assert ("Stopped early." in sentence) == any(row.state == "stopped" for row in rows)


def part(one: Score, other: Score) -> bool:
    """Whether two texts are not the same so far: neither begins with the other one, or that which
    is shorter has ended.
    """
    known = one.started.tokenizer == other.started.tokenizer != "" and one.tokens and other.tokens
    shorter = min(one, other, key=lambda score: len(score.text))
    ended = shorter.state == "done" and shorter.reason != "photo finish"
    ended &= bool(known) or shorter.reason != "token limit"
    longer = other if shorter is one else one
    more = len(longer.text) > len(shorter.text)
    return not longer.text.startswith(shorter.text) or (more and ended)


def which_texts_are_the_same(board: Scoreboard, result: Result, sentence: str) -> None:
    """Texts of one class do not part, and those of two do somewhere; each mark says so of the
    column that it names, and the headline counts the classes.
    """
    written = [row for row in result.rows if row.score.steps and row.state != "failed"]
    classes: dict[int | None, list[Row]] = {}
    for row in written:
        classes.setdefault(row.comparison.like, []).append(row)
    assert not any(
        part(a.score, b.score) for rows in classes.values() for a, b in combinations(rows, 2)
    )
    for one, other in combinations(classes.values(), 2):
        assert any(part(a.score, b.score) for a in one for b in other)
    for row in result.rows:
        other = None if row.comparison.other is None else result.rows[row.comparison.other]
        if row.text in ("same", "so far"):
            assert other
            assert not part(row.score, other.score)
            assert row.text == "so far" or row.score.text == other.score.text
            assert row.text == "so far" or {row.state, other.state} == {"done"}
            far = "identical to" if row.text == "same" else "so far identical to"
            assert comparison(board, row).startswith(f"{far} {other.name} (")
        elif row.text:
            assert other
            assert part(row.score, other.score)
            assert comparison(board, row).startswith(f"differs from {other.name} at ")
    if not board.ended or not written:
        return
    changed = [row.name for row in written if row.text == "changed"]
    cut = any(row.text == "so far" for row in written)
    alike = f"All texts are identical{', as far as each was written' if cut else ''}."
    own = [row.name for row in result.rows if row.text == "different"]
    groups = [[row.name for row in rows] for rows in classes.values()]
    by_design = len(groups) == 2 and own in groups
    if changed:
        assert f"The text changed in {listed(changed)}." in sentence
    elif by_design:
        assert f"{listed(own)} write" in sentence
        assert ("others are identical" in sentence) == (sum(map(len, groups)) - len(own) > 1)
    elif len(classes) > 1:
        names = "; ".join(listed([row.name for row in rows]) for rows in classes.values())
        assert f"{len(classes)} different texts: {names}." in sentence
    assert (alike in sentence) == (len(classes) == 1 and len(written) > 1)
    assert ("different texts:" in sentence) == (len(classes) > 1 and not changed and not by_design)


def figures_fit_together(board: Scoreboard, result: Result, row: Row) -> None:
    """A column's figures are of one span: each ratio is that of the amounts beside it."""
    figures = {figure.name: figure.value(row) for figure in FIGURES}
    speedup = row.speedup.value
    if speedup and not row.baseline:
        assert row.speedup.low <= speedup <= row.speedup.high
        assert row.rate / row.baseline_rate == pytest.approx(speedup)
        if row.pass_time and isclose(row.baseline_amount, row.baseline_passes):
            assert row.tokens_per_pass / row.pass_time == pytest.approx(speedup)
    if row.verdict in SHOWN - {"short"}:
        assert row.speedup.known
        assert (row.verdict == "faster") == (round(row.speedup.low, 2) > 1)
        assert (row.verdict == "slower") == (round(row.speedup.high, 2) < 1)
    if figures["tpot"] and figures["rate"]:
        assert figures["tpot"] * figures["rate"] == pytest.approx(1000)
    assert bool(figures["rate"] or figures["characters"]) == bool(row.rate)
    positions = row.until.positions
    assert sum(accepted for _, accepted in positions) == row.until.accepted
    assert sum(offered for offered, _ in positions) == row.until.drafted
    assert figures["drafted"] == (row.until.drafted or None)
    pattern = r"([\d.]+)\S the tokens per pass \S ([\d.]+)\S the time = ([\d.]+)\S"
    if equation := re.match(pattern, why(board, row)):
        tokens, cost, ratio = map(float, equation.groups())
        assert ratio == pytest.approx(tokens / cost, rel=0.01 / min(cost, tokens, ratio, 1) + 1e-9)
        assert ratio == round(speedup, 2)
    if computed := re.match(r"it computed ([\d,]+) tokens?", why(board, row)):
        assert int(computed[1].replace(",", "")) == row.until.rows


def all_show_the_same(board: Scoreboard, result: Result, record: RaceRecord) -> None:
    """Page, Markdown, picture and API have the same headline, leaders, speed-up, interval,
    verdict, mark and message for each column; the page's bars are its numbers.
    """
    sentence, told = headline(board, result), report(board)
    drawn, picture = Drawer(board, record.request).draw(), picture_of(record)
    text = re.sub(r"\\(.)|\N{ZERO WIDTH SPACE}", r"\1", markdown(record))
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    words = re.findall(r"<text[^>]*>(.*)</text>", picture)[3 + len(wrap(sentence, 92)[:2]) :]
    assert told["headline"] == sentence
    assert text.startswith(sentence)
    assert drawn["status"] in (sentence, board.preparing)
    assert told["leaders"] == [str(board.columns[i]) for i in result.leaders]
    assert drawn["leaders"] == list(result.leaders)
    assert picture.count(WINNER) == 1 + 2 * len(result.leaders)
    assert drawn["noisy"] == (told["doubt"] == "noisy") == (result.doubt == "noisy")
    if any(row.score.steps for row in result.rows):
        assert drawn["unit"] == result.unit
    for row, api, lane, cell in zip(
        result.rows, told["columns"], drawn["columns"], cells[2:], strict=True
    ):
        value, interval, marked = row.speedup.value, row.speedup.interval, mark(board, row)
        assert (api["speedup"], api["interval"]) == (value or None, interval)
        assert lane["speedup"] == pytest.approx(value or None, abs=1e-4)
        assert lane["interval"] == pytest.approx(interval and list(interval), abs=1e-4)
        number, none = likely(row.speedup), "\N{EN DASH}"
        assert (cell[:2], cell[-1]) == ([row.name, number if value else none], marked or none)
        assert api["verdict"] == lane["verdict"] == row.verdict
        assert api["compared"] == lane["mark"] == marked
        assert api["message"] == row.message
        assert lane["message"] == row.message or row.message == drawn["status"]
        assert not row.message or outcome(board, row) == row.message
        spans = [span for *_, spans, _ in drawn_steps(drawn, row.column) for span in spans]
        assert not board.ended or "".join(text for _, text in spans) == row.score.text
        if result.doubt == "noisy" or not value:
            number = "failed" if row.message else span(row.speedup).strip()
        assert (marked, number) in pairwise(words)
        if "why" in drawn:
            why_table = drawn["why"]["figures"]
            figures = set(zip(why_table["headers"], why_table["rows"][row.column], strict=True))
            assert figures <= {*zip(cells[0], cell, strict=True), ("column", row.name)}
        if board.ended and value and not row.baseline and result.baseline:
            for column, had in ((row, row.amount), (result.baseline, row.baseline_amount)):
                steps = drawn_steps(drawn, column.column)
                bar = amount(steps, row.moment)
                if column.score.repeats:  # the number is of all runs, the steps are the first one's
                    continue
                assert bar == pytest.approx(had, rel=0.01, abs=0.3)


def production_follows(board: Scoreboard, result: Result, record: RaceRecord) -> None:
    """What it says to use was raced, and was faster with the baseline's text unless nothing was;
    it expects of that what its row says.
    """
    every, base = snippets(board, record.request, record.target), result.baseline
    step = next_step(board, every)
    assert not (step.code and step.column)
    if step.code:
        owners = [e.raced for c in every.values() for e in c.values() if e.code == step.code]
        used = [result.rows[row.column] for row in owners if row]
        assert base
        assert used
        assert any(row.score.text == base.score.text for row in used)
        assert ("Expect" in step.sentence) == any(row.verdict == "faster" for row in used)
        expected = any(f"Expect {likely(row.speedup)}," in step.sentence for row in used)
        assert ("Expect" in step.sentence) == expected


#: Strategies, grammars, precisions, libraries and a server.
SIMULATED = """kv kv stateless lookup lookup:k=3 speculative lookahead grammar kv:grammar=date
lookup:grammar=date kv@int8 lookup@int8 transformers transformers:lookup=4 openvino_genai llamacpp
llamacpp:spec=ngram-simple @http://a @http://b"""


@st.composite
def simulated(draw: Any) -> tuple[list[Column], list[Event], Request]:
    """Columns that write one of three texts, or one like it, at any pace, and end in any way."""
    names = draw(st.lists(st.sampled_from(SIMULATED.split()), min_size=1, max_size=6))
    columns, odd, program = (
        list(map(parse_column, names)),
        draw(st.booleans()),
        not draw(ONE_IN_SIX),
    )
    limit = draw(LENGTHS) if odd else 70
    usual_end = draw(st.sampled_from(["end of text", "stopped"])) if odd else "token limit"
    timed: list[tuple[float, Event]] = []
    for index, column in enumerate(columns):
        own = _column(draw, index, column, limit, usual_end, odd=odd, program=program)
        seconds = (e.seconds["total"] if isinstance(e, Step) else 0.0 for e in own)
        timed += zip(accumulate(seconds), own, strict=True)
    events = [event for _, event in sorted(timed, key=lambda pair: pair[0])]
    others = draw(st.sampled_from([0.0, 0.3, 0.8, None])) if odd else 0.0
    events += [] if others is None else [Conditions(others)]
    return columns, events, Request('{{gen "x"}}' if program else "Why?", 70)


LENGTHS = st.integers(1, 70)
ONE_IN_SIX = st.integers(0, 5).map(bool)  # False: the rare case


def _column(
    draw: Any,
    index: int,
    column: Column,
    limit: int,
    usual_end: Reason,
    *,
    odd: bool,
    program: bool,
) -> list[Event]:
    """Its own events, most of them what is usual in the race."""

    def rare() -> bool:
        return odd and not draw(ONE_IN_SIX)

    which = draw(st.sampled_from([0, 0, 0, 1] if column.grammar is None else [0, 1, 2]))
    text = [(i * (which + 3) + i // 5) % 25 for i in range(draw(LENGTHS) if rare() else limit)]
    if rare():
        text[draw(LENGTHS) % len(text)] = 25
    longest = 1 if column.plain and not column.grammar else 4
    pace = st.tuples(st.integers(1, longest), st.sampled_from([0.01, 0.03, 0.05, 0.06, 0.1, 0.3]))
    server, library = not column.strategy.loads, not column.strategy.ours
    tokenizer = draw(st.sampled_from(["", "another"])) if server else "another" if rare() else "one"
    spec = {} if server or rare() else asdict(column.target(ModelSpec()))
    events: list[Event] = [Started(index, 5, tokenizer, spec, lossless=not rare())]
    events += [Served(index, draw(st.sampled_from(["network", "server"])))] * server
    events += [Fed(index, [["fixed", "given: "]], 0.01)] * program
    events += [Decided(index, {}, "no guess pays", ["a draft is slow"], plain=True)] * rare()
    forced = column.grammar is not None and draw(st.booleans())
    for number, (size, cost) in enumerate(cycle(draw(st.lists(pace, min_size=1, max_size=3)))):
        block, text = text[:size], text[size:]
        guessed = 0 if forced or library or not number else len(block) - 1
        event = step(index, block, cost if number else 0.5, guessed)
        if library:
            event = replace(event, rows=0, gaps=[], seconds={"total": event.seconds["total"]})
        origins = ["forced"] * (len(block) - 1) + ["sampled"] if forced else event.origins
        events.append(replace(event, origins=origins, tokens=[] if server else event.tokens))
        if not text:
            break
    events += [Judged(index, draw(st.sampled_from(["valid", "invalid"])), "why")] * rare()
    if column.strategy.alone and not rare():
        _, *steps = [event for event in events if isinstance(event, Step)]
        slower = draw(st.sampled_from([0.8, 1.0, 1.3]))
        times = [slower * each.seconds["total"] for each in steps]
        events.append(Repeated(index, times, [len(each.origins) for each in steps]))
    end = draw(st.sampled_from([*get_args(Reason), "failed", ""])) if rare() else usual_end
    if end == "failed":
        failed = Failed(index, draw(st.sampled_from(["No.", "It broke."])))
        return [*events[: draw(LENGTHS) - 1], failed]
    return [*events, Finished(index, end, [])] if end else events


@settings(max_examples=60)
@given(simulated(), st.floats(0, 1))
def test_nothing_contradicts_in_simulated_races(
    race: tuple[list[Column], list[Event], Request], share: float
) -> None:
    columns, events, request = race
    for so_far in (events[: int(share * len(events))], events):
        agree(columns, so_far, request, ModelSpec())


OWN = GrammarSource("lark", 'start: "yes" | "no" | "no way"', "own")

#: Strategies and grammars in every form, a model of another column's own, and columns that fail.
RACED = """stateless kv kv grammar speculative lookup lookup:k=3,ngram=1 lookahead
speculative:draft=fake-draft,k=3 speculative:draft=fake,k=4 lookahead:window=3,level=2,guesses=2
grammar:grammar=date kv:grammar=own lookup:grammar=own,k=3 speculative:grammar=own,draft=fake-draft
kv:model=fake-draft lookup:model=fake-draft speculative:draft=fake-draft,promise=distribution
speculative:draft=nothing kv:model=nothing"""

PROMPTS = (
    "Who?",
    "Why is it so, why is it so? " * 3,
    'A {{gen "n" regex="[0-9]{2,4}" max_tokens=6}} B {{select "s" "red|green"}} and {{n}}.',
    '{{gen "x" max_tokens=9}}',
    'Say {{gen "a" max_tokens=12 temperature=0.9 stop="e"}} again: {{a}}, {{gen "b" max_tokens=3}}',
)

requests = st.builds(
    Request,
    st.sampled_from(PROMPTS),
    st.sampled_from([1, 2, 24, 60]),
    st.builds(Sampling, st.sampled_from([0.0, 0.7, 1.5]), seed=st.integers(0, 2**20)),
    st.booleans(),
    st.sampled_from([(), (), ("e",), ("ab", "q")]),
    st.sampled_from([0, 0, 16, 40, 110, 130]),
    ignore_eos=st.booleans(),
)

MODELS = LoadedModels()


def raced(
    columns: Sequence[Column], request: Request, target: ModelSpec, stop_after: int
) -> list[Event]:
    events: list[Event] = []
    race = Race(request, tuple(columns), target)
    Host(MODELS).run(race, events.append, lambda: len(events) >= stop_after)
    return events


@settings(max_examples=30)
@given(
    st.lists(
        st.sampled_from(RACED.split()).map(lambda name: parse_column(name, OWN)),
        min_size=1,
        max_size=6,
    ),
    requests,
    st.sampled_from(["fake", "fake-loop", "fake-one-token"]).map(
        lambda name: replace(FAKE, name=name)
    ),
    st.one_of(st.just(10**9), st.integers(0, 150)),
    st.sampled_from([0.0, 0.0, 0.3, 0.8]),
    st.floats(0, 1),
    st.permutations(range(6)),
)
def test_nothing_contradicts_in_races_whatever_the_order_of_their_columns(
    columns: list[Column],
    request: Request,
    target: ModelSpec,
    stop_after: int,
    others: float,
    share: float,
    order: list[int],
) -> None:
    events = raced(columns, request, target, stop_after)
    events = [replace(e, others=others) if isinstance(e, Conditions) else e for e in events]
    for so_far in (events[: int(share * len(events))], events):
        agree(columns, so_far, request, target)
    again = [columns[i] for i in order if i < len(columns)]
    other = board_after(again, raced(again, request, target, 10**9)).scores
    for score, column in zip(board_after(columns, events).scores, columns, strict=True):
        whole = other[again.index(column)]
        cut = score.state == "stopped" or "photo finish" in (score.reason, whole.reason)
        length = min(len(score.tokens), len(whole.tokens)) if cut else None
        assert score.tokens[:length] == whole.tokens[:length]
        assert cut or (score.reason, score.text, score.message) == (
            whole.reason,
            whole.text,
            whole.message,
        )
