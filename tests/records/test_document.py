"""The schema says what the dataclasses say; what it refuses is refused with a sentence."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from lib import LOCAL
from recordings import FAKE, KINDS, PARTS, race_of

from backend.errors import DerbyError
from backend.events import CostsKnown, Event, LoadKnown, to_json
from backend.grammar.sources import GrammarSource, shipped
from backend.records.document import (
    SCHEMA,
    document_of,
    read_document,
    schema,
    write_document,
)
from backend.records.file import from_bytes
from backend.records.record import LEFT_OUT, board, recorded
from backend.strategies.column import OwnModel, default_column
from backend.types import MAX_NEW_TOKENS, Request

HERE = Path(__file__).parent
OWN = GrammarSource(
    "lark",
    "%import .part.start -> part\nstart: part",
    "mine",
    (GrammarSource("regex", "a+", "part"),),
)


def test_the_schema_is_made_of_the_code() -> None:
    """A reader of others goes by it: `python -m backend.records` writes it anew."""
    assert SCHEMA.read_text(encoding="utf-8") == schema()
    assert KINDS.keys() == {kind.__name__ for kind in get_args(Event) if kind not in LEFT_OUT}


def test_everything_is_bounded() -> None:
    """A number beyond all bounds would break whoever draws it."""

    def unbounded(part: Any) -> Iterator[Any]:
        if isinstance(part, dict):
            number = part.get("type") in ("integer", "number")
            if number and not {"minimum", "maximum"} <= part.keys():
                yield part
            part = list(part.values())
        for each in part if isinstance(part, list) else ():
            yield from unbounded(each)

    assert [each for name in KINDS for each in unbounded(PARTS[name])] == []


def test_a_chat_and_a_plain_prompt_survive() -> None:
    """They are said only where they are so: other records stay what they were."""
    record = race_of("kv")
    assert not {"turns", "tags"} & set(document_of(record)["request"])
    chat = replace(record.request, turns=(("system", "Be kind."), ("user", "Hi")), tags=False)
    told = replace(record, request=chat)
    assert read_document(write_document(told)) == told
    with pytest.raises(DerbyError, match="A message's role is 'tool'"):
        replace(chat, turns=(("tool", "x"),))


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("grammar", [None, OWN, shipped()["sql"]])
def test_every_column_survives(name: str, grammar: GrammarSource | None) -> None:
    column = default_column(name).with_settings({"grammar": grammar}).on(OwnModel("m", "torch"))
    record = recorded(Request("a"), [column], FAKE, ())
    said = write_document(record)
    read = read_document(said)
    assert read.columns == (column,)
    assert hash(read.columns[0]) == hash(column)
    assert (b"start:" in said) == (grammar == OWN), "a grammar that ships is a name"


def test_a_limit_that_continuing_set_is_read() -> None:
    """It may be beyond what a user may set, 4,096."""
    column = default_column("stateless").limited(MAX_NEW_TOKENS)
    said = document_of(recorded(Request("a"), [column], FAKE, ()))
    assert read_document(json.dumps(said).encode()).columns == (column,)
    for wrong in ("0", str(MAX_NEW_TOKENS + 1), "many"):
        said["columns"][0]["settings"]["limit"] = wrong
        assert "not a record of a race" in refusal(said)


def refusal(document: Any) -> str:
    with pytest.raises(DerbyError) as caught:
        read_document(json.dumps(document).encode())
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 500
    return sentence


Change = Callable[[dict[str, Any]], Any]

CHANGES: dict[str, Change] = {
    "an unknown key": lambda d: d.update(more=1),
    "an unknown kind": lambda d: d["events"][0].update(kind="Ended"),
    "a kind that is of no race": lambda d: d["events"].append({"kind": "Preparing", "text": "a"}),
    "1.0 for a whole number": lambda d: step(d).update(rows=1.0),
    "true for a whole number": lambda d: step(d).update(rows=True),
    "a token below 0": lambda d: step(d).update(tokens=[-1]),
    "a number beyond": lambda d: step(d).update(rows=10**30),
    "no number": lambda d: step(d)["seconds"].update(total=float("nan")),
    "a step without its time": lambda d: step(d)["seconds"].pop("total"),
    "more tokens than origins": lambda d: step(d).update(tokens=[1, 2, 3, 4, 5]),
    "more gaps than tokens": lambda d: step(d).update(gaps=[1.0] * 9),
    "an unknown origin": lambda d: step(d).update(origins=["guessed"]),
    "a span that is no pair": lambda d: step(d).update(spans=[["sampled"]]),
    "a column beyond": lambda d: d["events"][0].update(column=1),
    "too many columns": lambda d: d.update(columns=d["columns"] * 13),
    "an unknown setting": lambda d: d["columns"][0]["settings"].update(k="2"),
    "a limit of a column without one": lambda d: d["columns"][0]["settings"].update(limit="2"),
    "an empty prompt": lambda d: d["request"].update(prompt=" "),
    "a temperature beyond": lambda d: d["request"]["sampling"].update(temperature=9),
    "no moment": lambda d: d.update(made="2026-13-40T10:20:30Z"),
    "another format": lambda d: d.update(format="snapshot"),
    "no version": lambda d: d.pop("version"),
}


def step(document: dict[str, Any]) -> dict[str, Any]:
    return next(event for event in document["events"] if event["kind"] == "Step")


@pytest.mark.parametrize("what", CHANGES)
def test_anything_else_is_refused(what: str) -> None:
    said = json.loads(write_document(race_of("kv")))
    CHANGES[what](said)
    refusal(said)


def test_what_is_no_document_is_refused() -> None:
    for value in (None, [], 7, "decode-derby-race", {"format": []}, {"a": 1}):
        assert "not a record of a race" in refusal(value)
    later = document_of(race_of("kv")) | {"version": 2}
    assert "version 2; this program reads 1: update" in refusal(later)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("CostsKnown", {"widths": [1, 1], "passes": [0.1, 0.2]}),
        ("CostsKnown", {"widths": [4, 2], "passes": [0.1, 0.2]}),
        ("CostsKnown", {"widths": [1], "passes": [0.1, 0.2]}),
        ("LoadKnown", {"requests": [1, 2]}),
        ("LoadKnown", {"requests": [2, 1], "passes": [[0.1, 0.2]] * 2}),
        ("LoadKnown", {"passes": [[0.1, 0.2, 0.3]]}),
        ("LoadKnown", {"widths": [2, 3]}),
    ],
)
def test_costs_of_other_widths_than_are_said_are_refused(kind: str, fields: dict[str, Any]) -> None:
    costs = to_json(CostsKnown(0, [1, 2], [0.1, 0.2], 0.0, 0.0))
    load = to_json(LoadKnown(0, [1], [1, 2], [[0.1, 0.2]], [[0.0, 0.0]]))
    said = document_of(race_of("kv"))
    said["events"] = [costs, load]
    assert read_document(json.dumps(said).encode()).events
    next(event for event in (costs, load) if event["kind"] == kind).update(fields)
    assert "cost what no" in refusal(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["columns"][0].update(strategy="bigram"), "There is no column 'bigram'"),
        (lambda d: d["target"].update(engine="vulkan"), "There is no engine 'vulkan'"),
        (lambda d: d["columns"][0]["model"].update(engine="vulkan"), "no engine 'vulkan'"),
    ],
)
def test_a_plug_in_that_is_not_here_is_named(change: Change, said: str) -> None:
    document = document_of(race_of("kv"))
    change(document)
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


def test_what_a_strategy_was_called_before_is_read() -> None:
    """`restart` became `no_reuse`: records, links and line-ups with the old name still open."""
    record = race_of("kv no_reuse")
    older = write_document(record).replace(b'"no_reuse"', b'"restart"')
    assert b'"restart"' in older
    assert read_document(older) == record
    assert str(default_column("restart")) == "no_reuse"
