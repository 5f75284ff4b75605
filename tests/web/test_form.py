"""Whatever a browser sends is either a race within its limits or one sentence."""

import json
from dataclasses import replace
from typing import Any

import pytest
from filled import HIDDEN, MENU, filled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.registry import all_precisions
from backend.errors import DerbyError
from backend.grammar.sources import shipped
from backend.limits import PUBLIC, Limits
from backend.racing.race import Race
from backend.strategies.column import Column, OwnModel, default_column, parse_column
from backend.strategies.registry import DEFAULT_COLUMNS, strategies
from backend.types import ModelSpec
from backend.web.form import (
    read_race,
    read_tokens,
    usable,
    wants_measuring,
)
from backend.web.offer import HUB, Offer


def columns(lineup: str, **changes: Any) -> tuple[Column, ...]:
    return read_race(filled(lineup=lineup, **changes), MENU).columns


def one(line: str, **changes: Any) -> Column:
    [column] = columns(line, **changes)
    return column


def test_the_untouched_form_is_the_default_race() -> None:
    race = read_race(filled(), MENU)
    assert race.columns == tuple(map(parse_column, DEFAULT_COLUMNS))
    assert race.target == ModelSpec()
    assert race.request.max_new_tokens == 128
    assert race.request.chat
    assert not wants_measuring(filled())


def test_pass_costs_are_measured_again_if_asked() -> None:
    assert wants_measuring(filled(measure=True))
    for rubbish in (1, None, "yes", []):
        with pytest.raises(DerbyError, match="measuring pass costs again"):
            wants_measuring(filled(measure=rubbish))


def test_columns_keep_their_order_and_settings() -> None:
    found = columns("lookup:k=9\n\n  speculative: k = 7 \r\nlookup:k=9\n")
    assert found == tuple(map(parse_column, ("lookup:k=9", "speculative:k=7", "lookup:k=9")))
    assert found[0].settings()["k"] == 9


def test_a_column_may_run_where_this_page_offers_it() -> None:
    assert one("kv@torch/bf16/CPU").model == OwnModel("", "torch", "bf16", "CPU")
    assert one("kv@AUTO").model == OwnModel(device="AUTO")
    assert one("kv@int8").target(ModelSpec("a/b")) == ModelSpec("a/b", precision="int8")
    for place, sentence in (
        ("@fake", "no engine 'fake' here"),
        ("@GPU", "no device 'GPU' here"),
        ("@torch/AUTO", "PyTorch has no device 'AUTO'"),
        ("@torch/int8", "'int8' in column"),
        ("@/etc/passwd", "not an engine, precision or device"),
    ):
        with pytest.raises(DerbyError, match=sentence):
            one(f"kv{place}")


def test_stop_strings_are_lines_with_escapes() -> None:
    race = read_race(filled(stop="END\n\n\\n\\nUser:\r\n"), MENU)
    assert race.request.stop == ("END", "\n\nUser:")


def test_a_grammar_of_ones_own_leaves_the_other_columns_alone() -> None:
    """One line that asked for it turned the grammar of every other column into it."""
    found = columns(
        "grammar\nkv:grammar=own\nkv:grammar=date\nkv", grammar__kind="regex", grammar__text="a+"
    )
    names = [column.grammar.name if column.grammar else "" for column in found]
    assert names == ["person", "my own", "date", ""]


@pytest.mark.parametrize(
    ("key", "hub", "label", "name"),
    [
        ("1", "", "llama", HIDDEN),
        ("2", "", "owner/model", "owner/model"),
        (HUB, " some-one/A_model.v2 ", "some-one/A_model.v2", "some-one/A_model.v2"),
    ],
)
def test_models_come_by_key_label_or_hub_id(key: str, hub: str, label: str, name: str) -> None:
    assert read_race(filled(model=key, model__hub=hub), MENU).target.name == name
    assert one(f"speculative:draft={label}").settings()["draft"] == name
    assert one(f"kv:model={label}").model.name == name
    for draft in ("hybrid", "trained", "int4", "int8"):
        assert one(f"speculative:draft={draft}").settings()["draft"] == draft


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../secrets",
        "./x",
        "~/x",
        "..",
        "a",
        "a/b/c",
        "a/../b",
        "a\\b",
        "a/.b",
        "a/b\n",
        "",
        " ",
        "\u00e9/b",
        "a/" + "b" * 300,
    ],
)
def test_no_path_passes_for_a_hub_id(path: str) -> None:
    """A name that starts with a dot would otherwise be opened as a folder of this machine."""
    stripped = path.strip()
    forms = [
        filled(model=HUB, model__hub=path),
        filled(lineup=f"kv:model={path}"),
        filled(lineup=f"speculative:draft={path}"),
        filled(model=path),
    ]
    for form in forms[3:] if stripped == "a/b" else forms:
        with pytest.raises(DerbyError):
            read_race(form, MENU)


@pytest.mark.parametrize("name", [HIDDEN, "mine.safetensors", "/x.safetensors", "0", HUB])
def test_no_path_and_no_key_passes_for_a_label(name: str) -> None:
    for setting in ("speculative:draft", "kv:model"):
        with pytest.raises(DerbyError, match="There is no model"):
            one(f"{setting}={name}")


#: Whole numbers that no float holds among them: JSON has no largest one.
NUMBERS = st.integers() | st.sampled_from([10**400, -(10**400), 2**63, -(2**63)])

WORDS = ["0", "1", HUB, "own", "int4", "a/b", "../a", HIDDEN, "llama", *strategies(), *shipped()]

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)

NAMES = sorted({name for row in map(default_column, strategies()) for name in row.settings()})
PLACES = ["openvino", "torch", "fake", "int8", "bf16", "CPU", "GPU", "..", "", "\u00e9", "/", "@"]


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line of a line-up that is right, nearly right or hostile."""
    name = draw(st.sampled_from([*strategies(), *strategies(), "nothing", HIDDEN]))
    place = "/".join(draw(st.lists(st.sampled_from(PLACES), max_size=3)))
    values = st.sampled_from(WORDS) | NUMBERS.map(str) | st.text(max_size=12)
    settings = st.tuples(st.sampled_from(["model", *NAMES]), values).map("=".join)
    said = ",".join(draw(st.lists(settings | st.text(max_size=6), max_size=3)))
    return f"{name}{'@' * bool(place)}{place}{':' * bool(said)}{said}"


LINEUPS = st.lists(lines() | st.text(max_size=30), max_size=4).map("\n".join)


def check(changes: dict[str, Any]) -> None:
    """A race within what the page offers, or one sentence that gives nothing away."""
    try:
        race = read_race(filled() | changes, MENU)
    except DerbyError as error:
        sent = json.dumps(changes, default=repr, ensure_ascii=False)
        assert HIDDEN in sent or HIDDEN not in str(error)  # noqa: PT017 (each ending is right)
        return
    assert isinstance(race, Race)
    offered = {*MENU.models, "a/b"}
    assert race.target.name in offered
    for column in race.columns:
        assert parse_column(str(column), column.grammar) == column
        assert column.model.name in offered | {""}
        assert column.model.engine in ("", "openvino", "torch")
        assert column.model.device in ("", "CPU", "AUTO")
        draft = column.settings().get("draft", "hybrid")
        assert draft in offered | {"hybrid", "trained", "none", *all_precisions()}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(filled())), ANYTHING, max_size=5))
def test_anything_gives_a_race_or_a_sentence(changes: dict[str, Any]) -> None:
    """Nothing but DerbyError is ever raised, and no path that a visitor sent reaches an engine."""
    check(changes)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(LINEUPS, st.sampled_from(["lark", "regex", "exe", 3]), st.sampled_from(["", "a+", None]))
def test_any_line_up_gives_a_race_or_a_sentence(lineup: str, kind: Any, text: Any) -> None:
    check({"lineup": lineup, "grammar.kind": kind, "grammar.text": text})


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**63, -(2**63), float("inf")])
@pytest.mark.parametrize(
    "field", ["max_new_tokens", "temperature", "top_k", "top_p", "seed", "context"]
)
def test_a_number_that_no_float_holds_is_a_sentence(field: str, number: float) -> None:
    """It ended in an OverflowError, because math.isfinite makes a float of it first."""
    with pytest.raises(DerbyError):
        read_race(filled() | {field: number}, MENU)
    with pytest.raises(DerbyError):
        read_tokens(number, MENU)


def within(**limits: int) -> Offer:
    return replace(MENU, limits=Limits(**limits))


def test_what_the_operator_lists_is_offered_without_the_hub() -> None:
    offer = within(hub_downloads=0)
    for changes in ({"model": "2"}, {"lineup": "kv:model=owner/model"}):
        assert read_race(filled(**changes), offer)


def test_a_page_for_everybody_takes_its_own_form() -> None:
    assert read_race(filled(), replace(MENU, limits=PUBLIC))


def test_too_many_columns_are_refused_before_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 columns, each with a grammar of 16 KB, held the page for 16 s: all of them were
    built, and then counted.
    """

    def unreachable(*_: Any) -> Column:
        raise AssertionError("a column was built")

    monkeypatch.setattr("backend.web.lineup.parse_column", unreachable)
    for lineup in ("grammar:grammar=own\n" * 100_000, "kv\n" * 13):
        with pytest.raises(DerbyError, match=r"line-up|There are 13 columns"):
            read_race(filled(lineup=lineup, grammar__text="a" * 16_384), MENU)


def test_of_a_form_that_was_kept_all_is_used_that_can_be() -> None:
    kept = filled(prompt="Again", seed=7, precision="int8", lineup="kv\nlookup:k=3", top_p=0.5)
    assert usable(kept, filled(), MENU) == kept
    assert usable(kept | {"unknown": 1}, filled(), MENU) == kept
    assert usable({}, filled(), MENU) == filled()


def test_what_cannot_be_raced_here_is_as_usual_and_the_rest_is_kept() -> None:
    """Precision and device are their engine's: one that is not offered takes them along."""
    kept = filled(prompt="Again", seed=-1, engine="mars", precision="int8", lineup="pears", chat=3)
    assert usable(kept, filled(), MENU) == filled(prompt="Again")
    assert usable(filled(prompt=""), filled(), MENU) == filled(prompt="")


@given(
    st.dictionaries(
        st.sampled_from(sorted(filled())),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    )
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_was_kept_a_race_can_be_run(kept: dict[str, Any]) -> None:
    form = usable(kept, filled(), MENU)
    assert set(form) == set(filled())
    assert isinstance(read_race({**form, "prompt": "-"}, MENU), Race)
