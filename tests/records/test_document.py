"""The schema says what the dataclasses say; what it refuses is refused with a sentence."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import MISSING, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from lib import LOCAL
from recordings import DOCUMENT, FAKE, KINDS, RECORDS, race_of

from backend.errors import DerbyError
from backend.events import CostsKnown, Event, LoadKnown
from backend.grammar.sources import GrammarSource, shipped
from backend.records.document import document_of, read_document
from backend.records.file import from_bytes
from backend.records.link import decode
from backend.records.place import Machine
from backend.records.record import LEFT_OUT, RaceRecord, board, recorded
from backend.strategies.column import OwnModel, default_column
from backend.types import MAX_NEW_TOKENS, ModelSpec, Request, Sampling

HERE = Path(__file__).parent
OWN = GrammarSource(
    "lark",
    "%import .part.start -> part\nstart: part",
    "mine",
    (GrammarSource("regex", "a+", "part"),),
)
#: Fields that the first files of version 1 do not have.
LATER = {"top", "turns", "tags", "node"}
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def resolved(part: Any) -> Any:
    return DOCUMENT["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part


def holds(part: Any, hint: Any) -> bool:
    """Tell whether the schema's part allows values of this type and no others."""
    part, origin = resolved(part), get_origin(hint)
    if origin is Literal or (hint is str and "enum" in part):
        return set(part["enum"]) == set(get_args(hint)) or hint is str
    if origin in (list, tuple):
        items, item = part.get("items", {}), get_args(hint)[0]
        inner = items if isinstance(items, list) else [items]
        empty = part.get("maxItems") == 0
        return part["type"] == "array" and (empty or all(holds(each, item) for each in inner))
    if origin is dict:
        inner = [*part.get("properties", {}).values(), part["additionalProperties"]]
        return part["type"] == "object" and all(holds(each, get_args(hint)[1]) for each in inner)
    if hint is Any and part["type"] in TYPES.values():
        return True  # in a pair, whose places have types of their own
    if hint is Any:
        return set(part["type"]) == {"string", "number", "boolean", "null"}
    return holds_scalars(part, hint) if hint in TYPES else holds_fields(part, hint)


def holds_scalars(part: Any, hint: Any) -> bool:
    """Tell whether the schema's part allows this kind of text or number, and bounds it."""
    bounds = {int: {"minimum", "maximum"}, float: {"minimum", "maximum"}, str: {"maxLength"}}
    return part["type"] in (TYPES[hint], [TYPES[hint], "null"]) and bounds.get(hint, set()) <= set(
        part
    )


def holds_fields(part: Any, kind: type[Any], besides: tuple[str, ...] = ()) -> bool:
    """Tell whether the schema's part asks for the fields of a dataclass, and no others."""
    hints = get_type_hints(kind)
    needed = {f.name for f in fields(kind) if f.default is f.default_factory is MISSING}
    properties = {name: each for name, each in part["properties"].items() if name not in besides}
    return (
        properties.keys() == hints.keys()
        and needed | set(besides) <= set(part["required"])
        and part["additionalProperties"] is False
        and all(holds(properties[name], hint) for name, hint in hints.items())
    )


def test_the_schema_and_the_events_are_one() -> None:
    """Also what has a default is in every file of today; a reader takes files without it."""
    told = {kind.__name__: kind for kind in get_args(Event) if kind not in LEFT_OUT}
    assert KINDS.keys() == told.keys()
    for name, part in KINDS.items():
        assert part["properties"]["kind"] == {"enum": [name]}
        assert holds_fields(part, told[name], ("kind",)), name
    known = DOCUMENT["properties"]["events"]["items"]["anyOf"]
    assert {each["$ref"].rpartition("/")[2] for each in known} == told.keys()


def test_the_schema_and_what_was_asked_are_one() -> None:
    parts, column = DOCUMENT["properties"], DOCUMENT["properties"]["columns"]["items"]
    for part, kind in (
        (parts["request"], Request),
        (parts["request"]["properties"]["sampling"], Sampling),
        (parts["target"], ModelSpec),
        (parts["machine"], Machine),
        (column["properties"]["model"], OwnModel),
        (DOCUMENT["definitions"]["grammar"], GrammarSource),
        (DOCUMENT["definitions"]["module"], GrammarSource),
    ):
        assert holds_fields(part, kind), kind
        assert set(part["required"]) == part["properties"].keys() - LATER
    assert holds_fields(parts["request"], Sampling) is False, "so that this can fail"
    assert set(document_of(race_of("kv"))) == set(DOCUMENT["required"])


def test_a_chat_and_a_plain_prompt_survive() -> None:
    """They are said only where they are so: other records stay what they were."""
    record = race_of("kv")
    assert not {"turns", "tags"} & set(document_of(record)["request"])
    chat = replace(record.request, turns=(("system", "Be kind."), ("user", "Hi")), tags=False)
    told = replace(record, request=chat)
    assert read_document(json.loads(json.dumps(document_of(told)))) == told
    with pytest.raises(DerbyError, match="A message's role is 'tool'"):
        replace(chat, turns=(("tool", "x"),))


@given(RECORDS)
def test_any_record_survives_its_document(record: RaceRecord) -> None:
    text = json.dumps(document_of(record), allow_nan=False)
    assert read_document(json.loads(text)) == record


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("grammar", [None, OWN, shipped()["sql"]])
def test_every_column_survives(name: str, grammar: GrammarSource | None) -> None:
    column = default_column(name).with_settings({"grammar": grammar}).on(OwnModel("m", "torch"))
    record = recorded(Request("a"), [column], FAKE, ())
    said = document_of(record)
    read = read_document(json.loads(json.dumps(said)))
    assert read.columns == (column,)
    assert hash(read.columns[0]) == hash(column)
    assert ("start:" in json.dumps(said)) == (grammar == OWN), "a grammar that ships is a name"


def test_a_limit_that_continuing_set_is_read() -> None:
    """It may be beyond what a user may set, 4,096."""
    column = default_column("stateless").limited(MAX_NEW_TOKENS)
    said = document_of(recorded(Request("a"), [column], FAKE, ()))
    assert read_document(said).columns == (column,)
    for wrong in ("0", str(MAX_NEW_TOKENS + 1), "many"):
        said["columns"][0]["settings"]["limit"] = wrong
        assert "no record of a race" in refusal(said)


def refusal(document: Any) -> str:
    with pytest.raises(DerbyError) as caught:
        read_document(document)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 500
    return sentence


Change = Callable[[dict[str, Any]], Any]

CHANGES: dict[str, Change] = {
    "an unknown key": lambda d: d.update(more=1),
    "an event's unknown key": lambda d: d["events"][0].update(more=1),
    "an unknown kind": lambda d: d["events"][0].update(kind="Ended"),
    "a kind that is of no race": lambda d: d["events"].append({"kind": "Preparing", "text": "a"}),
    "a number for a text": lambda d: d["request"].update(prompt=7),
    "1.0 for a whole number": lambda d: step(d).update(rows=1.0),
    "true for a whole number": lambda d: step(d).update(rows=True),
    "a token below 0": lambda d: step(d).update(tokens=[-1]),
    "a token beyond": lambda d: step(d).update(tokens=[2**31]),
    "a number beyond": lambda d: step(d).update(rows=10**30),
    "an endless number": lambda d: step(d)["seconds"].update(total=inf),
    "no number": lambda d: step(d)["seconds"].update(total=float("nan")),
    "a step without its time": lambda d: step(d)["seconds"].pop("total"),
    "time that runs back": lambda d: step(d)["seconds"].update(total=-1.0),
    "more tokens than origins": lambda d: step(d).update(tokens=[1, 2, 3, 4, 5]),
    "more gaps than tokens": lambda d: step(d).update(gaps=[1.0] * 9),
    "an unknown origin": lambda d: step(d).update(origins=["guessed"]),
    "a span that is no pair": lambda d: step(d).update(spans=[["sampled"]]),
    "a column beyond": lambda d: d["events"][0].update(column=1),
    "a column below 0": lambda d: d["events"][0].update(column=-1),
    "no columns": lambda d: d.update(columns=[]),
    "too many columns": lambda d: d.update(columns=d["columns"] * 13),
    "an unknown setting": lambda d: d["columns"][0]["settings"].update(k="2"),
    "a limit of a column without one": lambda d: d["columns"][0]["settings"].update(limit="2"),
    "a grammar in a grammar's part": lambda d: d["columns"][0]["settings"].update(
        grammar={**GRAMMAR, "modules": [{**GRAMMAR, "modules": [GRAMMAR]}]}
    ),
    "an empty prompt": lambda d: d["request"].update(prompt=" "),
    "a temperature beyond": lambda d: d["request"]["sampling"].update(temperature=9),
    "a seed that is no number": lambda d: d["request"]["sampling"].update(seed="1"),
    "no moment": lambda d: d.update(made="2026-13-40T10:20:30Z"),
    "another form of moment": lambda d: d.update(made="yesterday"),
    "another format": lambda d: d.update(format="snapshot"),
    "no version": lambda d: d.pop("version"),
    "a version that is no number": lambda d: d.update(version=[1]),
}
GRAMMAR = {"kind": "regex", "text": "a", "name": "b", "modules": [], "relax": False}


def step(document: dict[str, Any]) -> dict[str, Any]:
    return next(event for event in document["events"] if event["kind"] == "Step")


@pytest.mark.parametrize("what", CHANGES)
def test_anything_else_is_refused(what: str) -> None:
    said = deepcopy(document_of(race_of("kv")))
    assert read_document(said) == race_of("kv")
    CHANGES[what](said)
    refusal(said)


@pytest.mark.parametrize("value", [None, [], 7, "decode-derby-race", {"format": []}, {"a": 1}])
def test_what_is_no_document_is_refused(value: Any) -> None:
    assert "no record of a race" in refusal(value)


@pytest.mark.parametrize("widths", [[1, 1], [4, 2], [1]])
def test_costs_of_no_widths_are_refused(widths: list[int]) -> None:
    costs = CostsKnown(0, widths, [0.1, 0.2], 0.0, 0.0)
    assert "passes cost" in refusal(document_of(replace(race_of("kv"), events=(costs,))))


@pytest.mark.parametrize(
    ("requests", "widths", "passes"),
    [
        ([1, 2], [1, 2], [[0.1, 0.2]]),
        ([2, 1], [1, 2], [[0.1, 0.2]] * 2),
        ([1], [1, 2], [[0.1, 0.2, 0.3]]),
        ([1], [2, 3], [[0.1, 0.2]]),
    ],
)
def test_costs_of_no_load_are_refused(
    requests: list[int], widths: list[int], passes: list[list[float]]
) -> None:
    costs = LoadKnown(0, requests, widths, passes, [[0.0, 0.0]] * len(requests))
    assert "under load" in refusal(document_of(replace(race_of("kv"), events=(costs,))))


def test_a_later_version_asks_for_a_later_program() -> None:
    said = document_of(race_of("kv")) | {"version": 2}
    assert "version 2; this program reads 1: update" in refusal(said)


@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        (("columns", 0, "strategy"), "bigram", "There is no column 'bigram'"),
        (("target", "engine"), "vulkan", "There is no engine 'vulkan'"),
        (("columns", 0, "model", "engine"), "vulkan", "There is no engine 'vulkan'"),
    ],
)
def test_a_plug_in_that_is_not_here_is_named(
    place: tuple[str | int, ...], name: str, said: str
) -> None:
    document = document_of(race_of("kv"))
    inner: Any = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = name
    assert said in refusal(document)


#: The kinds of events that there were when version 1 was made.
FIRST_KINDS = {
    *("Conditions", "Started", "Prepared", "CostsKnown", "Decided", "Resumed", "Prefilled", "Fed"),
    *("Step", "Filled", "Shifted", "Judged", "Finished", "Failed"),
}


def test_what_version_1_wrote_is_read() -> None:
    """Never make these files anew: what people have saved cannot be either."""
    record = from_bytes((HERE / "race-1.json").read_bytes())
    names = ["kv", "lookup:k=3", "grammar:grammar=own", "speculative@openvino/int8"]
    assert [str(column) for column in record.columns] == names
    assert record.columns[2].grammar == OWN
    assert {type(event).__name__ for event in record.events} == FIRST_KINDS
    made = board(record)
    assert [score.state for score in made.scores] == ["done", "done", "done", "failed"]
    assert made.scores[0].text == made.scores[1].text == "W\\Ly9Ta }Zj(P{&4j:R7x=bF"
    assert made.difference(1) is None
    assert decode((HERE / "race-1.link").read_text(encoding="utf-8")) == record
