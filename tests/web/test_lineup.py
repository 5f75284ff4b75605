"""The line-up editor: its text and its columns are one thing, and nothing sent to it is trusted."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.limits import PRIVATE, PUBLIC, Limits
from backend.programs.parser import is_program
from backend.racing.race import MAX_COLUMNS
from backend.records.record import board
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import BASELINE, DEFAULT_COLUMNS, strategies
from backend.types import ModelSpec, Request
from backend.web.assets import ASSETS
from backend.web.examples import OPENING, Example, examples, opening, presets
from backend.web.lineup import MAX_TEXT, Lineup, unused_grammar
from backend.web.lineup_editor import answer, apply, catalogue, editor_state
from backend.web.offer import Offer, Runtime, offer_of

HIDDEN = "/srv/secret/models/llama"
OFFER = Offer(
    (
        Runtime("openvino", "OpenVINO", ("fp32", "int8", "int4", "int4-exact"), ("CPU", "AUTO")),
        Runtime("torch", "PyTorch", ("fp32", "bf16"), ("CPU", "CUDA")),
    ),
    ("built-in", HIDDEN, "owner/model", "/elsewhere/my, model", "/a/twin", "/b/twin"),
)
TARGET = ModelSpec()
USUAL = "\n".join(DEFAULT_COLUMNS)
OWN = GrammarSource("regex", "a+", "my own")

EXAMPLES = [
    "speculative:k=7",
    "kv",
    "kv@openvino/int8",
    "kv@torch/bf16/CUDA:model=llama",
    "kv@int4:cache=session,grammar=person",
    "speculative:k=4,draft=int4",
    "speculative:draft=some/model",
    "lookup:auto=true,k=4",
    "lookahead:window=7,level=4,guesses=7,seeded=false",
    "grammar:grammar=own",
]
LINEUPS = st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=MAX_COLUMNS).map("\n".join)


def read_lineup(
    text: str, offer: Offer, target: ModelSpec, own: GrammarSource | None
) -> tuple[Column, ...]:
    return Lineup.read(text, offer).race(offer, target, own)


def parse_lineup(text: str, offer: Offer) -> tuple[Column, ...]:
    return Lineup.read(text, offer).columns


def asks_for_own(text: str) -> bool:
    return Lineup.read(text, OFFER).asks_for_own


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_the_usual_line_up_is_the_five_strategies() -> None:
    columns = read_lineup(USUAL, OFFER, TARGET, None)
    assert [str(column) for column in columns] == list(DEFAULT_COLUMNS)
    assert apply("", {"op": "preset", "name": "strategies"}, OFFER) == USUAL


@given(LINEUPS)
@settings(deadline=None)
def test_the_editor_shows_what_a_race_would_run(text: str) -> None:
    """Each value is shown in words that, set again, leave the column as it is."""
    state = editor_state(text, OFFER)
    assert state["problem"] == ""
    assert state["text"] == text
    json.dumps(state, allow_nan=False)
    columns = read_lineup(text, OFFER, TARGET, OWN)
    assert len(state["columns"]) == len(columns)
    for shown, column in zip(state["columns"], columns, strict=True):
        assert shown["strategy"] == column.strategy.name
        (again,) = read_lineup(shown["line"], OFFER, TARGET, OWN)
        assert again == column
        declared = catalogue(OFFER)["strategies"][shown["strategy"]]
        fields = {field["name"]: field for field in (*declared["fields"], *declared["place"])}
        assert fields.keys() == shown["values"].keys()
        for name, value in shown["values"].items():
            field = fields[name]
            if field["kind"] == "choice" and not field.get("other"):
                options = shown["options"].get(name, field["options"])
                assert value in [option for option, _ in options]


@given(LINEUPS, st.data())
def test_adding_duplicating_moving_and_removing_keep_all_other_columns(
    text: str, data: Any
) -> None:
    before = parse_lineup(text, OFFER)
    index = data.draw(st.integers(0, len(before) - 1))
    to = data.draw(st.integers(0, len(before) - 1))
    moved = parse_lineup(apply(text, {"op": "move", "index": index, "to": to}, OFFER), OFFER)
    assert moved[to] == before[index]
    assert [c for i, c in enumerate(moved) if i != to] == [
        c for i, c in enumerate(before) if i != index
    ]
    shorter = apply(text, {"op": "remove", "index": index}, OFFER)
    assert [line for line in lines(shorter) if line] == [
        line for i, line in enumerate(lines(text)) if i != index
    ]
    if len(before) == MAX_COLUMNS:
        for action in ({"op": "duplicate", "index": index}, {"op": "add", "strategy": "kv"}):
            with pytest.raises(DerbyError, match="12 columns already"):
                apply(text, action, OFFER)
        return
    longer = parse_lineup(apply(text, {"op": "duplicate", "index": index}, OFFER), OFFER)
    assert longer == (*before[: index + 1], *before[index:])
    added = parse_lineup(apply(text, {"op": "add", "strategy": "lookup"}, OFFER), OFFER)
    assert added == (*before, parse_column("lookup"))


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_value_that_is_set_is_the_value_shown(line: str, data: Any) -> None:
    """By every control of every strategy: in the text, and shown again from it."""
    text = f"kv\n\n {line} "
    strategy = line.partition(":")[0].partition("@")[0]
    declared = catalogue(OFFER)["strategies"][strategy]
    field = data.draw(st.sampled_from([*declared["fields"], *declared["place"]]))
    shown = editor_state(text, OFFER)["columns"][1]
    match field["kind"]:
        case "number":
            value = str(data.draw(st.integers(field["low"], field["high"])))
        case "flag":
            value = data.draw(st.sampled_from(["true", "false"]))
        case _:
            options = shown["options"].get(field["name"], field["options"])
            value, _ = data.draw(st.sampled_from(options))
    action = {"op": "set", "index": 1, "setting": field["name"], "value": value}
    state = answer({"text": text, "action": action}, OFFER)
    assert state["problem"] == ""
    assert lines(state["text"])[0] == "kv"
    assert state["columns"][1]["values"][field["name"]] == value


def test_only_the_changed_line_is_rewritten() -> None:
    """What somebody typed in words of their own stays as they typed it."""
    typed = "kv\nlookup:auto=false , k = 4\nspeculative:k=4"
    action = {"op": "set", "index": 2, "setting": "k", "value": "5"}
    assert lines(apply(typed, action, OFFER)) == [*lines(typed)[:2], "speculative:k=5"]


def test_another_engine_takes_away_what_it_does_not_have() -> None:
    action = {"op": "set", "index": 0, "setting": "engine", "value": "torch"}
    assert apply("kv@openvino/int8/AUTO", action, OFFER) == "kv@torch"
    assert apply("kv@openvino/fp32/CPU", action, OFFER) == "kv@torch/fp32/CPU"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama", HIDDEN),
        ("owner/model", "owner/model"),
        ("someone/else", "someone/else"),
        ("3", "/elsewhere/my, model"),
        ("4", "/a/twin"),
        ("5", "/b/twin"),
    ],
)
def test_models_go_by_label_or_hub_id_and_else_by_key(written: str, name: str) -> None:
    """A label that two models share, or that a column's text cannot hold, gives way to the key."""
    (column,) = read_lineup(f"kv:model={written}", OFFER, TARGET, None)
    assert column.target(TARGET).name == name
    (column,) = read_lineup(f"speculative:draft={written}", OFFER, TARGET, None)
    assert column.settings()["draft"] == name
    assert name.startswith("/") == (
        name not in json.dumps(editor_state(f"kv:model={written}", OFFER))
    )


def test_the_page_names_no_path() -> None:
    shown = json.dumps([catalogue(OFFER), answer({"text": "kv:model=nothing"}, OFFER)])
    assert "no model" in shown
    assert not any(part in shown for part in ("/srv", "/elsewhere", "/a/", "/b/"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kv\n\nnothing", "Line 3 of the line-up: There is no column 'nothing'"),
        ("kv\nlookup:k=99", "Line 2 of the line-up: Prompt lookup: k is 99"),
        ("lookup:k", "Line 1 of the line-up: 'k' in column"),
        ("kv@elsewhere", "Line 1 of the line-up: There is no device 'elsewhere' here"),
        (
            "kv@fake",
            "Line 1 of the line-up: There is no engine 'fake' here",
        ),
        ("kv@torch/int8", "Line 1 of the line-up: 'int8' in column"),
        (
            "kv@NPU",
            "Line 1 of the line-up: There is no device 'NPU' here",
        ),
        ("kv:grammar=nothing", "Line 1 of the line-up: There is no grammar 'nothing'"),
        ("", "No column is chosen"),
        (" \n\n", "No column is chosen"),
        ("kv\n" * 13, "13 columns"),
        ("x" * (MAX_TEXT + 1), "4,001 characters"),
    ],
)
def test_a_wrong_text_is_one_sentence_with_the_line_and_stays(text: str, sentence: str) -> None:
    state = answer({"text": text, "serial": 7}, OFFER)
    assert sentence in state["problem"]
    assert "\n" not in state["problem"]
    assert len(state["problem"]) < 300
    assert state["text"] == text
    assert state["columns"] is None
    assert state["serial"] == 7
    with pytest.raises(DerbyError):
        read_lineup(text, OFFER, TARGET, None)


def test_a_wrong_text_is_corrected_before_its_columns_are_moved() -> None:
    """Which column is meant is unknown; what was typed is kept. A preset starts afresh."""
    wrong = "kv\nnothing"
    state = answer({"text": wrong, "action": {"op": "remove", "index": 0}}, OFFER)
    assert state["refused"]
    assert state["text"] == wrong
    assert state["problem"].startswith("Line 2 of the line-up: ")
    fresh = answer({"text": wrong, "action": {"op": "preset", "name": "k"}}, OFFER)
    assert not fresh["problem"]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(
        [*EXAMPLES, *strategies(), *shipped(), "own", "../a", HIDDEN, "int8", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
OPS = st.sampled_from(["add", "duplicate", "remove", "move", "set", "preset"])
KEYS = st.sampled_from(["index", "to", "setting", "value", "strategy", "name"])
ACTIONS = st.builds(
    lambda op, rest: {"op": op, **rest},
    OPS,
    st.dictionaries(KEYS, st.integers(0, 3) | ANYTHING, max_size=4),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ANYTHING
    | st.fixed_dictionaries({"text": LINEUPS | ANYTHING, "action": ACTIONS, "serial": ANYTHING})
)
def test_anything_gives_a_state_that_can_be_sent_back(sent: Any) -> None:
    """Never an error; what it shows could be raced, on models that are offered."""
    state = answer(sent, OFFER)
    json.dumps(state, allow_nan=False).encode()
    state["text"].encode()
    for column in state["columns"] or ():
        (run,) = read_lineup(column["line"], OFFER, TARGET, OWN)
        name = run.target(TARGET).name
        assert name in OFFER.models or name.count("/") == 1
        assert name != "../a"


def test_own_grammar_is_asked_for_only_where_it_is_named() -> None:
    """A grammar column without more has the usual grammar, whatever is in the other tab."""
    assert not asks_for_own(USUAL)
    assert not asks_for_own("kv:grammar=person\nspeculative:draft=own/model")
    assert asks_for_own("kv\nkv: grammar = own ,cache=fresh")
    plain, own = read_lineup("grammar\ngrammar:grammar=own", OFFER, TARGET, OWN)
    assert plain.grammar == shipped()["person"]
    assert own.grammar == OWN


def test_each_column_runs_where_it_says() -> None:
    text = "kv\nkv@int8\nkv@torch/bf16/CUDA\nkv:model=llama"
    specs = [column.target(TARGET) for column in read_lineup(text, OFFER, TARGET, None)]
    assert specs == [
        ModelSpec(),
        ModelSpec(precision="int8"),
        ModelSpec("built-in", "torch", "bf16", "CUDA"),
        ModelSpec(HIDDEN),
    ]
    torch = ModelSpec("built-in", "torch", "fp32", "CPU")
    with pytest.raises(DerbyError, match="Line 2 of the line-up: PyTorch has no precision 'int8'"):
        read_lineup(text, OFFER, torch, None)


def test_presets_can_be_run_and_are_left_out_where_they_cannot() -> None:
    for preset in presets():
        columns = read_lineup("\n".join(preset.lines), OFFER, TARGET, None)
        assert 2 <= len(columns) <= MAX_COLUMNS
        assert len(set(columns)) == len(columns)
    offered = {name: about for name, _, about in catalogue(OFFER)["presets"]}
    assert list(offered) == [preset.name for preset in presets()]
    assert all(about.endswith((".", "?")) for about in offered.values())
    alone = Offer((Runtime("torch", "PyTorch", ("fp32",), ("CPU",)),), ("built-in",))
    assert set(offered) - {name for name, *_ in catalogue(alone)["presets"]} == {
        "quantisation",
        "engine",
    }


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.label)
def test_an_example_is_a_whole_race(example: Example) -> None:
    """ "Arithmetic" was answered as a person in JSON: a grammar stands in a line-up only where it
    suits the prompt, and every example has its own line on what is to be seen.
    """
    columns = read_lineup(example.lineup(OFFER), OFFER, TARGET, None)
    assert BASELINE in {column.name for column in columns}
    assert len(set(columns)) == len(columns) >= 3
    assert 1 <= example.tokens <= PUBLIC.tokens
    assert len(columns) <= PUBLIC.columns
    assert example.about.endswith((".", "?"))
    grammars = {column.grammar.name for column in columns if column.grammar}
    fitting = {"Extract": {"contact"}, "Person as JSON": {"person"}}
    assert grammars == fitting.get(example.label, set())
    whole = {"no_reuse", "single"} & {column.name for column in columns}
    assert not whole or is_program(example.prompt), "yardsticks for programs alone"
    plain = [column for column in columns if column.grammar is None]
    assert all(column.label == column.title for column in plain)
    Request(example.prompt, example.tokens)


def test_presets_are_told_in_words_that_a_newcomer_knows() -> None:
    """ "Which draft, on torch?" was for those who knew already."""
    for preset in presets():
        assert not re.search(r"torch|fp32|n-gram|=|quanti", f"{preset.title} {preset.about}")


def test_page_api_and_preset_begin_with_the_same_five_strategies() -> None:
    """The page opened with prompt lookup in the grammar's place, the API and the preset did not."""
    five = next(preset for preset in presets() if preset.name == "strategies")
    assert examples()[0].columns == five.lines == DEFAULT_COLUMNS


def test_the_opening_race_is_the_first_examples_and_shows_all_five() -> None:
    """It was recorded on the built-in model: the texts that must agree do, the JSON is valid, the
    cache, the drafts and the grammar each gained something, and nothing is missing.
    """
    first, record = examples()[0], opening()
    assert (record.request.prompt, record.request.max_new_tokens) == (first.prompt, first.tokens)
    assert record.target == TARGET
    assert tuple(map(str, record.columns)) == first.columns
    made = board(record)
    stateless, kv, speculative, lookahead, grammar = made.scores
    assert {score.state for score in made.scores} == {"done"}
    assert all(made.sameness(index) == "same" for index in (0, 2, 3))
    assert grammar.text == kv.text
    assert json.loads(kv.text)["full_name"] in first.prompt
    assert stateless.tpot > kv.tpot
    for guesser in (speculative, lookahead):
        assert sum(accepted for _, accepted in guesser.positions) == guesser.accepted > 0
    assert grammar.forced
    assert min(s.tokens_per_forward for s in (speculative, lookahead, grammar)) > 1.1
    assert made.conditions is not None
    assert len((ASSETS / OPENING).read_bytes()) < 150_000


@pytest.mark.parametrize("most", [1, 3, 5, 12, 1000])
def test_the_operators_number_of_columns_holds_everywhere(most: int) -> None:
    offer = replace(OFFER, limits=Limits(columns=most))
    allowed = min(most, MAX_COLUMNS)
    assert catalogue(offer)["most"] == allowed
    for example in examples():
        assert editor_state(example.lineup(offer), offer)["columns"]
    full = "\n".join(["kv"] * allowed)
    for action in ({"op": "add", "strategy": "kv"}, {"op": "duplicate", "index": 0}):
        with pytest.raises(DerbyError, match=f"There are {allowed} columns already"):
            apply(full, action, offer)
    assert editor_state(f"{full}\nkv", offer)["columns"] is None
    for name, *_ in catalogue(offer)["presets"]:
        assert len(lines(apply("", {"op": "preset", "name": name}, offer))) <= allowed


def test_a_page_without_the_hub_does_not_offer_it() -> None:
    assert "Hub id" in json.dumps(catalogue(OFFER))
    assert "Hub id" not in json.dumps(catalogue(replace(OFFER, limits=Limits(hub_downloads=0))))


def test_the_editor_refuses_a_server_that_the_page_does_not_offer() -> None:
    """It took any address, on public pages too; only the race refused it."""
    public = offer_of(["fake"], limits=PUBLIC)
    state = answer({"text": "kv\n@http://10.0.0.1:8080"}, public)
    assert state["columns"] is None
    assert "There is no server 'http://10.0.0.1:8080' on this page" in state["problem"]
    private = offer_of(["fake"], limits=PRIVATE)
    assert answer({"text": "kv\n@http://10.0.0.1:8080"}, private)["columns"]


def test_an_own_grammar_that_no_column_uses_is_told() -> None:
    """It was ignored without a word."""
    offer = offer_of(["fake"])
    said = 'No column uses it: set the grammar of a column to "my own".'
    assert unused_grammar("kv\nlookup", offer) == said
    assert unused_grammar({"text": "kv\ngrammar:grammar=own"}, offer) == ""
    assert unused_grammar("what?", offer) == ""
