"""What a snapshot records of a column's request is what it is taken up again with."""

import json

import pytest
from lib import LOCAL

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.racing.records import read_record, record_of
from backend.strategies.column import default_column
from backend.types import ModelSpec, Request, Sampling

OWN = GrammarSource(
    "lark",
    "%import .part.start -> part\nstart: part",
    "mine",
    (GrammarSource("regex", "a+", "part"),),
)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("grammar", [None, OWN])
def test_a_request_survives_being_json(name: str, grammar: GrammarSource | None) -> None:
    """Once, a grammar came back with the files that it imports as plain dicts."""
    column = default_column(name).with_settings({"grammar": grammar})
    request = Request("Why?", 30, Sampling(0.7, 40, 0.9, 12), chat=False, stop=("a", "b"))
    target = ModelSpec("fake", "fake")
    record = json.loads(json.dumps(record_of(request, column, target)))
    assert read_record(record | {"shifts": [[3, 1, 2]]}) == (request, column, target)
    assert hash(read_record(record)[1]) == hash(column)


def test_a_record_of_something_else_is_refused() -> None:
    record = record_of(Request("Why?"), default_column("grammar"), ModelSpec())
    for name in record:
        with pytest.raises(DerbyError, match="record cannot be read"):
            read_record({key: value for key, value in record.items() if key != name})
    with pytest.raises(DerbyError, match=r"'target\.more' is not known"):
        read_record(record | {"target": {"name": "m", "more": 1}})
    record["settings"]["grammar"] = {"kind": "lark"}
    with pytest.raises(DerbyError, match="record cannot be read"):
        read_record(record)
