"""Up to how many requests a column pays, and what the page and production make of it."""

import pytest
from boards import board_of, started, step

from backend.events import Event, Finished, LoadKnown
from backend.export.production import snippet
from backend.results.load import LINES, UnderLoad, load_chart, load_of, under_load
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import advice, headlines
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

#: Eight rows in all are free; each beyond costs a tenth of a pass.
WIDTHS = [1, 2, 4, 8]
REQUESTS = [1, 2, 4, 8]
FORCED = ["forced", "forced", "sampled"]
KNOWN = LoadKnown(
    0,
    REQUESTS,
    WIDTHS,
    [[0.02 * (1 + max(0, b * k - 8) / 10) for k in WIDTHS] for b in REQUESTS],
    [[0.0, 0.0]] * len(REQUESTS),
)


def board(names: str, tokens: int = 3, drafting: float = 0.0, seconds: float = 0.02) -> Scoreboard:
    """Columns of which all but the first commit so many tokens from passes of five rows."""
    events: list[Event] = []
    for index, _ in enumerate(names.split()):
        spent = drafting if index else 0.0
        parts = {"draft": spent, "mask": 0.0, "forward": seconds, "rest": 0.0}
        timed = {**parts, "total": seconds + spent}
        count, rows = (tokens, 5) if index else (1, 1)
        steps = [step(index, [0] * count, 0.0, rows=rows, drafted=rows - 1, seconds=timed)] * 19
        events += [started(index), step(index, [0], 0.0, rows=10, seconds=timed), *steps]
        events.append(Finished(index, "token limit", []))
    return board_of(names, *events)


def loaded(names: str = "kv lookup:k=4", tokens: int = 3, drafting: float = 0.0) -> Scoreboard:
    made = board(names, tokens, drafting)
    made.add(KNOWN)
    return made


def under(made: Scoreboard) -> UnderLoad:
    """The second column as load sees it."""
    found = under_load(made, 1)
    assert found is not None
    return found


def test_what_load_costs_is_known_to_all_columns_of_a_model() -> None:
    assert load_chart(board("kv lookup:k=4")) is None
    made = loaded()
    assert load_of(made, 1) == load_of(made, 0)
    curve = load_of(made, 0).curves[2]
    assert (curve.widths, curve.seconds) == ((1, 2, 4, 8), pytest.approx(KNOWN.passes[2]))


def test_load_is_as_slow_as_the_race_was() -> None:
    """The table had 28 tokens a second for one request, and the race 13: memory was slower."""
    made = board("kv lookup:k=4", seconds=0.04)
    made.add(KNOWN)
    assert load_of(made, 1)(1, 1) == pytest.approx(0.04)
    assert (load_chart(made) or {})["cells"][0][1] == "25"
    assert under(made).gain(1) == pytest.approx(3.0)


def test_a_column_pays_up_to_the_load_at_which_its_rows_cost_what_they_yield() -> None:
    made = loaded()
    found = under(made)
    assert (found.rows, found.tokens) == (5.0, 3.0)
    assert found.gain(1) == pytest.approx(3.0), "five rows are free alone"
    for b in REQUESTS:
        cost = load_of(made, 0)(5, b) / load_of(made, 0)(1, b)
        assert found.gain(b) == pytest.approx(3.0 / cost)
    assert found.limit in REQUESTS
    assert found.gain(found.limit) > 1 > found.gain(2 * found.limit) - 0.02


def test_fewer_guesses_pay_up_to_a_higher_load() -> None:
    """The sentence kept the guesses of the race, and the table beside it had others."""
    made = loaded(tokens=2)
    found = under(made)
    assert (found.limit, found.best_limit) == (2, 4)
    table = {int(cells[0]): cells for cells in (load_chart(made) or {})["cells"]}
    for b in REQUESTS:
        assert (" with k=" in table[b][2]) == (found.best_gain(b) > 1)
    assert found.sentence == (
        "faster up to 4 requests at once: 2.00\u00d7 as fast as KV reuse for one request, "
        f"{found.best_gain(4):.2f}\u00d7 for 4"
    )
    predicted = "Predicted: with 8+ requests at once, KV reuse is fastest."
    assert headlines(made)[1].endswith(predicted)
    assert advice(made).endswith("With 8+ requests at once, KV reuse does.")


def test_reading_the_prompt_is_no_drafting_of_a_pass() -> None:
    """The draft reads it in the first step, and each pass had a part of that on its account."""
    parts = {"draft": 0.04, "mask": 0.0, "forward": 0.02, "rest": 0.0, "total": 0.06}
    first = step(0, [0], 0.0, rows=10, seconds=parts)
    later = step(0, [0] * 3, 0.0, rows=5, drafted=4, seconds={**parts, "draft": 0.001})
    made = board_of("lookup:k=4", started(0), first, *[later] * 19, KNOWN)
    found = under_load(made, 0)
    assert found is not None
    assert found.drafting == pytest.approx(0.001)


def test_what_pays_never_and_what_pays_always_say_so() -> None:
    never, always = under(loaded(drafting=0.1)), under(loaded(tokens=5))
    assert (never.limit, always.limit) == (0, 8)
    assert never.sentence.startswith("not faster at any load: 0.5")
    assert always.sentence.startswith("faster at every load: 5.00\u00d7")


def test_a_column_that_guesses_nothing_is_no_matter_of_load() -> None:
    made = loaded()
    assert under_load(made, 0) is None
    chart = load_chart(made)
    assert chart is not None
    assert [mark["name"] for mark in chart["marks"]] == ["Prompt lookup"]
    assert chart["heads"] == ["Requests", "KV reuse", "Prompt lookup"]
    assert [line[0] for line in chart["lines"]] == [k for k in LINES if k < 8]


def test_the_chart_breaks_even_where_a_pass_is_worth_its_time() -> None:
    chart = load_chart(loaded())
    assert chart is not None
    evens = dict(chart["lines"])
    assert evens[1][:3] == [0.0, 0.0, 0.0], "eight rows are free"
    assert evens[1][3] == pytest.approx(0.8), "sixteen rows cost 1.8 plain passes"
    assert evens[7][0] == 0.0
    assert evens[7][3] == pytest.approx(1.0, abs=0.2)
    (mark,) = chart["marks"]
    tokens = sum(mark["acceptance"] ** i for i in range(5))
    assert tokens == pytest.approx(3.0, abs=0.02)
    assert chart["cells"][0][1] == "50"
    assert "with k=" in chart["cells"][0][2]


def test_lookahead_has_no_chain_of_guesses_to_draw() -> None:
    made = loaded("kv lookahead")
    chart, found = load_chart(made), under(made)
    assert chart is not None
    assert chart["marks"][0]["acceptance"] is None
    assert chart["heads"] == ["Requests", "KV reuse", "Lookahead"]
    told = [cells[2] for cells in chart["cells"]]
    rates = [b * found.gain(b) / load_of(made, 0)(1, b, found.context) for b in REQUESTS]
    assert told == [f"{rate:,.0f}" for rate in rates], "no number of its guesses is the best"
    assert "faster up to" in chart["marks"][0]["sentence"]


def test_load_makes_what_a_grammar_forces_dearer_too() -> None:
    """A column that won by forced tokens alone was missing in the table of load."""
    events: list[Event] = [started(0), *[step(0, [0], 0.02)] * 20, started(1), step(1, [0], 0.02)]
    events += [*[step(1, [0] * 3, 0.02, rows=3, origins=FORCED)] * 19, KNOWN]
    made = board_of("kv grammar:grammar=person", *events)
    chart = load_chart(made)
    assert chart is not None
    assert chart["heads"][2] == "Grammar"
    assert chart["marks"][0]["acceptance"] is None
    gains = [float(cells[2]) / float(cells[1]) for cells in chart["cells"]]
    assert gains[0] == pytest.approx(3.0, abs=0.02)
    assert gains[-1] < gains[0]


def test_under_load_another_column_than_kv_reuse_may_be_the_fastest() -> None:
    """Beside a grammar that gains at every load, "with more requests, use KV reuse" was said."""
    events: list[Event] = [started(0), *[step(0, [0], 0.02)] * 40]
    guesses = step(1, [0] * 4, 0.02, rows=8, drafted=7)
    forced = step(2, [0] * 3, 0.02, rows=3, origins=FORCED)
    for index, block in ((1, guesses), (2, forced)):
        events += [started(index), step(index, [0], 0.02), *[block] * 13]
    events += [*[Finished(i, "token limit", []) for i in range(3)], KNOWN]
    made = board_of("kv speculative grammar:grammar=person", *events)
    assert advice(made).endswith("With 4+ requests at once, Grammar does.")
    assert headlines(made)[1].endswith("with 4+ requests at once, Grammar is fastest.")


def test_production_carries_the_load_over() -> None:
    made = loaded()
    found = under(made)

    def code(library: str, *, load: bool) -> str:
        given = found if load else None
        column, score = parse_column("lookup:k=4"), made.scores[1]
        written = snippet(column, score, Request("Hi"), ModelSpec(), library, given)
        return f"{written.code}\n{written.note}"

    ranges = [list(each) for each in found.schedule(4)]
    assert ranges[0][0] == 1
    assert ranges[-1][1:] == [8, 0] or ranges[-1][1] == 8
    assert f'"num_speculative_tokens_per_batch_size": {ranges}' in code("vLLM", load=True)
    assert f"--parallel {found.limit}" in code("llama.cpp", load=True)
    for library in ("transformers", "openvino-genai", "vLLM", "SGLang", "llama.cpp"):
        assert f"is faster up to {found.limit} requests at once" in code(library, load=True)
        assert "at once" not in code(library, load=False)
        assert "batch_size" not in code(library, load=False)
