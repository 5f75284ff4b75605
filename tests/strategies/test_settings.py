"""The kinds of settings: each takes its own values, in any form, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.strategies.column import Column, default_column, parse_column, settings_of
from backend.strategies.registry import strategies
from backend.strategies.settings import (
    Choice,
    Flag,
    GrammarChoice,
    ModelChoice,
    Setting,
    TextLine,
    WholeNumber,
    grammar_choice,
)

SETTINGS: list[tuple[Column, Setting]] = [
    (default_column(name), setting)
    for name, strategy in strategies().items()
    for setting in settings_of(strategy).values()
]


def named(kind: type[Any]) -> list[Any]:
    """The settings of a kind, each with its column."""
    return [
        pytest.param(column, setting, id=f"{column.name}-{setting.name}")
        for column, setting in SETTINGS
        if isinstance(setting, kind)
    ]


@pytest.mark.parametrize(("column", "setting"), named(object))
def test_every_setting_is_labelled_and_explained(column: Column, setting: Setting) -> None:
    assert setting.name.isidentifier()
    assert setting.label.strip()
    assert setting.help.strip().endswith(".")
    assert column.settings()[setting.name] == setting.default
    assert setting.parse(setting.default, column.title) == setting.default
    assert setting.parse(setting.text(setting.default), column.title) == setting.default
    if isinstance(setting, WholeNumber):
        assert 0 <= setting.low <= setting.default <= setting.high
    if isinstance(setting, Choice | ModelChoice):
        values = [value for value, _ in setting.options]
        assert len(set(values)) == len(values) > isinstance(setting, Choice)
        assert all(label.strip() for _, label in setting.options)
        assert setting.text(setting.default) in values


@pytest.mark.parametrize(("column", "setting"), named(WholeNumber))
def test_a_number_is_taken_within_its_range_only(column: Column, setting: WholeNumber) -> None:
    low, high = setting.low, setting.high
    for value in (low, high, setting.default):
        for written in (value, float(value), str(value), f" {value} "):
            changed = column.with_settings({setting.name: written})
            expected = {**column.settings(), **setting.fixes, setting.name: value}
            assert changed.settings() == expected
            assert type(changed.settings()[setting.name]) is int
            assert changed != column or value == setting.default
        assert parse_column(f"{column.name}:{setting.name}={value}") == changed
    for value in (low - 1, high + 1, -(10**400), 10**400):
        with pytest.raises(DerbyError, match=f"between {low} and {high}"):
            column.with_settings({setting.name: value})
    for rubbish in ("", "x", "1.5", 1.5, None, [3], float("nan"), float("inf"), "9" * 5000, {}):
        with pytest.raises(DerbyError, match=r"must be a (whole|finite|smaller) number"):
            column.with_settings({setting.name: rubbish})


@pytest.mark.parametrize(
    ("name", "size", "off"),
    [
        ("lookup", "k", False),
        ("speculative", "k", False),
        ("lookahead", "window", False),
        ("lookahead", "level", False),
        ("lookahead", "guesses", False),
    ],
)
def test_naming_a_size_switches_auto_off_unless_it_is_named_too(
    name: str, size: str, off: Any
) -> None:
    column = default_column(name)
    auto = column.settings()["auto"]
    assert auto != off
    assert column.automatic
    fixed = column.with_settings({size: 4})
    assert fixed.settings() == {**column.settings(), "auto": off, size: 4}
    assert not fixed.automatic
    for values in ({"auto": auto, size: 4}, {size: 4, "auto": auto}):
        assert column.with_settings(values).settings() == {**column.settings(), size: 4}
    assert not default_column("kv").automatic


@pytest.mark.parametrize(("column", "setting"), named(Flag))
def test_a_flag_is_true_or_false(column: Column, setting: Flag) -> None:
    for written, value in (("true", True), ("False", False), ("1", True), (0, False), (True, True)):
        assert column.with_settings({setting.name: written}).settings()[setting.name] is value
    for rubbish in ("", "maybe", 2, None, []):
        with pytest.raises(DerbyError, match="true or false"):
            column.with_settings({setting.name: rubbish})


@pytest.mark.parametrize(("column", "setting"), named(Choice))
def test_a_choice_is_one_of_its_options(column: Column, setting: Choice) -> None:
    for value, _ in setting.options:
        assert column.with_settings({setting.name: value}).settings()[setting.name] == value
    for rubbish in ("", "none of them", 2, None, [], {}):
        with pytest.raises(DerbyError, match=rf"it must be '{setting.options[0][0]}'"):
            column.with_settings({setting.name: rubbish})


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("speculative:auto=false", "speculative:k=8"),
        ("speculative:auto=false,k=4", "speculative:k=4"),
        ("speculative:auto=true,k=4", "speculative:auto=true,k=4"),
        ("lookahead:auto=false", "lookahead:window=5,level=3,guesses=5"),
        ("lookahead:auto=false,window=7", "lookahead:window=7"),
        ("grammar:grammar=none", "grammar:grammar=none"),
    ],
)
def test_a_column_tells_its_sizes_and_not_that_they_are_fixed(written: str, text: str) -> None:
    """Beside k=4 and k=16, the column with the usual k was called "auto=false"; a grammar column
    without a grammar was written like one with it.
    """
    column = parse_column(written)
    assert str(column) == text
    assert parse_column(text) == column


@pytest.mark.parametrize("kind", [ModelChoice, TextLine])
@given(st.text(max_size=210))
def test_a_name_is_any_text_that_is_neither_empty_nor_long(kind: Any, text: str) -> None:
    options = (("one", "the one"),)
    setting = (
        kind("name", "Name", "Help.", "one", options)
        if kind is ModelChoice
        else kind("name", "Name", "Help.", "one")
    )
    if 0 < len(text) <= 200:
        assert setting.text(setting.parse(text, "Column")) == text
    else:
        with pytest.raises(DerbyError, match=r"^Column: Name is .*; it must"):
            setting.parse(text, "Column")


@pytest.mark.parametrize(("column", "setting"), named(GrammarChoice))
def test_a_grammar_is_a_shipped_name_a_source_or_none(
    column: Column, setting: GrammarChoice
) -> None:
    own = GrammarSource("regex", "a+", "mine")
    assert column.with_settings({"grammar": own}).grammar == own
    assert setting.text(own) == "own"
    for name, source in shipped().items():
        bound = parse_column(f"{column.name}:grammar={name}")
        assert bound.grammar == source
        assert not bound.lossless
        assert setting.text(source) == name
    for none in ("none", None):
        freed = column.with_settings({"grammar": none})
        assert freed.grammar is None
        assert freed.label.endswith("(grammar=none)") == (column.grammar is not None)
    for rubbish in ("nothing", "", [], {}, 3):
        with pytest.raises(DerbyError, match="grammar"):
            column.with_settings({"grammar": rubbish})


def test_a_grammar_that_only_bears_a_shipped_ones_name_is_ones_own() -> None:
    forged = GrammarSource("regex", "a+", "date")
    assert grammar_choice(None).text(forged) == "own"
    assert parse_column(str(default_column("kv").with_settings({"grammar": forged})), forged)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from(SETTINGS), ANYTHING)
def test_any_value_is_kept_or_a_sentence(pair: tuple[Column, Setting], value: Any) -> None:
    """What a setting keeps it writes, and what it wrote it keeps: nothing but DerbyError else."""
    column, setting = pair
    try:
        kept = setting.parse(value, column.title)
    except DerbyError:
        return
    assert setting.parse(kept, column.title) == kept
    assert setting.parse(setting.text(kept), column.title) == kept
