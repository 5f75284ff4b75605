"""The table of strategies, and what users may write to change a row of it."""

from dataclasses import Field, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.strategies.registry import (
    BASELINE,
    DEFAULT_COLUMNS,
    SIZES,
    STRATEGIES,
    Strategy,
    parse_column,
)
from backend.strategies.settings import PRECISIONS, NoDrafting, draft_spec
from backend.types import ModelSpec

SETTINGS: list[tuple[Strategy, Field[Any]]] = [
    (row, declared) for row in STRATEGIES.values() for declared in fields(row.drafting)
]
NUMBERS = [(row, f) for row, f in SETTINGS if type(f.default) is int]
#: Who names a size without a word on auto wants that size.
FIXED = {f.name: {"auto": False} if f.name in SIZES else {} for _, f in SETTINGS}
NAMED = [pytest.param(*pair, id=f"{pair[0].name}-{pair[1].name}") for pair in SETTINGS]
NAMED_NUMBERS = [pytest.param(*pair, id=f"{pair[0].name}-{pair[1].name}") for pair in NUMBERS]


def test_the_table_is_consistent() -> None:
    assert set(DEFAULT_COLUMNS) <= set(STRATEGIES)
    assert len(set(DEFAULT_COLUMNS)) == len(DEFAULT_COLUMNS)
    assert len({row.title for row in STRATEGIES.values()}) == len(STRATEGIES)
    baseline = STRATEGIES[BASELINE]
    assert (baseline.cache, baseline.drafting, baseline.grammar) == (True, NoDrafting(), None)
    for name, row in STRATEGIES.items():
        assert row.name == name
        assert row.title.strip()
        assert len(row.description) > 40
        assert row.lossless == (row.grammar is None and not row.single)
        assert (row.limit > 0) == (not row.cache)
        assert row.with_settings(row.settings()) == row, "its own settings change nothing"
        assert parse_column(name) == row
        assert row.label == row.title


@pytest.mark.parametrize(("row", "declared"), NAMED)
def test_every_setting_is_labelled_and_explained(row: Strategy, declared: Field[Any]) -> None:
    assert declared.metadata["label"].strip()
    assert declared.metadata["help"].strip().endswith(".")
    if (row, declared) in NUMBERS:
        assert 1 <= declared.metadata["low"] <= declared.default <= declared.metadata["high"]


@pytest.mark.parametrize(("row", "declared"), NAMED_NUMBERS)
def test_a_number_is_taken_within_its_range_only(row: Strategy, declared: Field[Any]) -> None:
    low, high = declared.metadata["low"], declared.metadata["high"]
    for value in (low, high, declared.default):
        for written in (value, float(value), str(value), f" {value} "):
            changed = row.with_settings({declared.name: written})
            assert changed.settings() == {
                **row.settings(),
                **FIXED[declared.name],
                declared.name: value,
            }
            assert type(changed.settings()[declared.name]) is int
            assert changed.drafting != row.drafting or value == declared.default
            kept = row.with_settings({"auto": True, declared.name: written})
            assert kept.settings() == {**row.settings(), declared.name: value}
        assert parse_column(f"{row.name}:{declared.name}={value}") == changed
    for value in (low - 1, high + 1, -(10**400), 10**400):
        with pytest.raises(DerbyError, match=f"between {low} and {high}"):
            row.with_settings({declared.name: value})
    for rubbish in ("", "x", "1.5", 1.5, None, [3], float("nan"), float("inf"), "9" * 5000, {}):
        with pytest.raises(DerbyError, match="whole number"):
            row.with_settings({declared.name: rubbish})


def test_the_other_settings_check_their_values_too() -> None:
    lookahead, stateless = STRATEGIES["lookahead"], STRATEGIES["stateless"]
    for written, value in (("true", True), ("False", False), ("1", True), (0, False), (True, True)):
        assert lookahead.with_settings({"seeded": written}).settings()["seeded"] is value
    for rubbish in ("", "yes", 2, None, []):
        with pytest.raises(DerbyError, match="true or false"):
            lookahead.with_settings({"seeded": rubbish})
    for limit in (1, 32, 4096):
        assert stateless.with_settings({"limit": str(limit)}).limit == limit
    for limit in (0, 4097, -1, "all", None):
        with pytest.raises(DerbyError, match="limit"):
            stateless.with_settings({"limit": limit})
    for draft in ("", "x" * 201, 3, None):
        with pytest.raises(DerbyError, match="1 to 200 characters"):
            STRATEGIES["speculative"].with_settings({"draft": draft})
    drafting = parse_column("speculative:draft=someone/model-1.5").settings()
    assert drafting["draft"] == "someone/model-1.5"


def test_a_cache_is_a_scope_or_a_snapshots_id() -> None:
    for row in (row for row in STRATEGIES.values() if row.cache):
        for scope in ("call", "session", "0123456789abcdef"):
            changed = parse_column(f"{row.name}:cache={scope}")
            assert changed.settings() == {**row.settings(), "cache": scope}
            assert changed == replace(row, scope=scope)
        for rubbish in ("", "Call", "0" * 15, "0" * 17, "G" * 16, "0" * 16 + "\n", "../x", None, 3):
            with pytest.raises(DerbyError, match="snapshot's id"):
                row.with_settings({"cache": rubbish})


def test_a_grammar_is_a_shipped_name_or_a_source() -> None:
    row = STRATEGIES["grammar"]
    own = GrammarSource("regex", "a+", "mine")
    assert row.with_settings({"grammar": own}).grammar == own
    for name, source in shipped().items():
        assert parse_column(f"grammar:grammar={name}").grammar == source
    for rubbish in ("nothing", "", [], {}, 3):
        with pytest.raises(DerbyError, match="There is no grammar"):
            row.with_settings({"grammar": rubbish})


def test_any_column_can_be_given_a_grammar_or_freed_of_one() -> None:
    for row in STRATEGIES.values():
        bound = parse_column(f"{row.name}:grammar=date")
        assert bound == replace(row, grammar=shipped()["date"])
        assert not bound.lossless
        freed = bound.with_settings({"grammar": "none"})
        assert freed == replace(row, grammar=None) == bound.with_settings({"grammar": None})
        assert freed.label.endswith("(grammar=none)") == (row.grammar is not None)


def test_a_grammar_of_ones_own_goes_where_it_is_asked_for() -> None:
    own = GrammarSource("regex", "a+", "mine")
    assert parse_column("grammar", own).grammar == own
    assert parse_column("lookup:grammar=own,k=3", own).grammar == own
    assert parse_column("lookup", own).grammar is None
    assert parse_column("grammar:grammar=date", own).grammar == shipped()["date"]
    with pytest.raises(DerbyError, match="name its file"):
        parse_column("grammar:grammar=own")


def test_several_settings_at_once_leave_the_others_alone() -> None:
    row = parse_column(" lookahead:window=7, level=4,")
    asked = {"auto": False, "window": 7, "level": 4}
    assert row.settings() == {**STRATEGIES["lookahead"].settings(), **asked}
    assert row.label == "Lookahead (window=7, level=4)"
    assert replace(row, drafting=STRATEGIES["lookahead"].drafting) == STRATEGIES["lookahead"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "There is no column ''"),
        ("nope", "There is no column 'nope'"),
        ("KV", "There is no column 'KV'"),
        ("kv:window=5", "KV reuse has no setting 'window'; it has cache"),
        (
            "lookup:window=5",
            "Prompt lookup has no setting 'window'; it has auto, k, ngram, branches, cache",
        ),
        ("kv:limit=5", "no setting 'limit'"),
        ("stateless:cache=session", "Stateless has no setting 'cache'; it has limit"),
        ("kv:cache=mine", "KV reuse: cache is 'mine'; it must be call"),
        ("lookahead:window", "'window' in column 'lookahead:window' is not of the form"),
        ("lookahead:window=", "whole number"),
        ("lookahead:=5", "no setting ''"),
        ("lookahead:window=5:level=3", "whole number"),
        ("lookahead:window=99", "Lookahead: Window W is 99; it must lie between 2 and 32"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(DerbyError) as caught:
        parse_column(text)
    assert said in str(caught.value)


@given(st.one_of(st.text(), st.from_regex(r"(kv|lookup|lookahead|stateless):[a-z0-9=,. -]*")))
def test_anything_else_is_a_column_or_a_sentence(text: str) -> None:
    try:
        row = parse_column(text)
    except DerbyError:
        return  # any other exception fails this test
    assert row.name == text.strip().partition(":")[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_drafts_with_that_copy_of_the_target(precision: str) -> None:
    target = ModelSpec("someone/model", "openvino", "fp32", "GPU")
    assert draft_spec(target, precision) == ModelSpec("someone/model", "openvino", precision, "GPU")
    torch = ModelSpec("someone/model", "torch", "bf16", "CUDA")
    on_torch = ModelSpec("someone/model", "torch", "fp32", "CUDA")
    on_openvino = ModelSpec("someone/model", "openvino", precision, "CPU")
    assert draft_spec(torch, precision) == (on_torch if precision == "fp32" else on_openvino)
    fake = ModelSpec("fake-slow", "fake")
    assert draft_spec(fake, precision) == fake


def test_any_other_draft_is_a_model_that_runs_as_the_target_does() -> None:
    for target in (ModelSpec("a/b", "torch", "bf16", "CUDA"), ModelSpec("fake", "fake")):
        assert draft_spec(target, "other") == replace(target, name="other")
