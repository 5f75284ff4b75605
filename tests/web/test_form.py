"""Whatever a browser sends is either a race within its limits or one sentence."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.racing.race import Race
from backend.strategies.registry import DEFAULT_COLUMNS, STRATEGIES
from backend.strategies.settings import PRECISIONS, DraftModelDrafting
from backend.types import ModelSpec
from backend.web.form import OWN, read_race
from backend.web.offer import HUB, Offer, Runtime

HIDDEN = "/srv/secret/models/llama"
MENU = Offer(
    (
        Runtime("openvino", "OpenVINO", ("fp32", "int8", "int4"), ("CPU", "AUTO")),
        Runtime("torch", "PyTorch", ("fp32", "bf16"), ("CPU",)),
    ),
    ("built-in", HIDDEN, "owner/model"),
)


def filled(**changes: Any) -> dict[str, Any]:
    """The form as the page first shows it, with changes; "__" in a name stands for a dot."""
    values: dict[str, Any] = {
        "prompt": "Hello",
        "max_new_tokens": 128,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "seed": 0,
        "stop": "",
        "chat": True,
        "context": 0,
        "shift": False,
        "heal": True,
        "measure": False,
        "columns": list(DEFAULT_COLUMNS),
        "model": "0",
        "model.hub": "",
        "engine": "openvino",
        "precision": "fp32",
        "device": "CPU",
        "speculative.draft.hub": "",
        "grammar.kind": "lark",
        "grammar.text": "",
    }
    for name, row in STRATEGIES.items():
        for setting, value in row.settings().items():
            sent = value.name if isinstance(value, GrammarSource) else value
            values[f"{name}.{setting}"] = sent
    return values | {name.replace("__", "."): value for name, value in changes.items()}


def test_the_untouched_form_is_the_default_race() -> None:
    race = read_race(filled(), MENU)
    assert race.columns == tuple(STRATEGIES[name] for name in DEFAULT_COLUMNS)
    assert race.target == ModelSpec()
    assert race.request.max_new_tokens == 128
    assert race.request.chat
    assert not race.measure


def test_pass_costs_are_measured_again_if_asked() -> None:
    assert read_race(filled(measure=True), MENU).measure


def test_columns_keep_their_order_and_settings() -> None:
    race = read_race(filled(columns=["lookup", "stateless"], lookup__k=9, stateless__limit=7), MENU)
    assert [column.name for column in race.columns] == ["lookup", "stateless"]
    assert race.columns[0].settings()["k"] == 9
    assert race.columns[1].limit == 7


def test_settings_of_columns_that_do_not_run_are_not_read() -> None:
    assert len(read_race(filled(columns=["kv"], lookahead__window="nonsense"), MENU).columns) == 1


def test_stop_strings_are_lines_with_escapes() -> None:
    race = read_race(filled(stop="END\n\n\\n\\nUser:\r\n"), MENU)
    assert race.request.stop == ("END", "\n\nUser:")


def test_a_grammar_of_ones_own() -> None:
    race = read_race(
        filled(
            columns=["grammar"],
            grammar__grammar=OWN,
            grammar__kind="regex",
            grammar__text="a+",
        ),
        MENU,
    )
    assert race.columns[0].grammar == GrammarSource("regex", "a+", "my own")


@pytest.mark.parametrize(
    ("key", "hub", "name"),
    [
        ("1", "", HIDDEN),
        ("2", "", "owner/model"),
        (HUB, " some-one/A_model.v2 ", "some-one/A_model.v2"),
    ],
)
def test_models_come_by_key_or_hub_id(key: str, hub: str, name: str) -> None:
    race = read_race(filled(model=key, model__hub=hub, columns=["kv"]), MENU)
    assert race.target.name == name
    draft = filled(columns=["speculative"], speculative__draft=key, speculative__draft__hub=hub)
    drafting = read_race(draft, MENU).columns[0].drafting
    assert isinstance(drafting, DraftModelDrafting)
    assert drafting.draft == name


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
        filled(speculative__draft=HUB, speculative__draft__hub=path),
        filled(model=path),
        filled(speculative__draft=path),
    ]
    for form in forms[2:] if stripped == "a/b" else forms:
        with pytest.raises(DerbyError):
            read_race(form, MENU)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": "x" * 70_000}, "too long"),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"max_new_tokens": None}, "max new tokens is empty"),
        ({"max_new_tokens": 0}, "max new tokens is 0"),
        ({"max_new_tokens": 1.5}, "whole number"),
        ({"temperature": float("nan")}, "too large a number"),
        ({"temperature": "1"}, "must be a number"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 0}, "top-p is 0"),
        ({"seed": 10**40}, "too large"),
        ({"chat": "yes"}, "chat template"),
        ({"context": 4}, "between 16 and"),
        ({"context": None}, "context limit is empty"),
        ({"shift": 1}, "context shift"),
        ({"heal": None}, "token healing"),
        ({"measure": 1}, "measuring pass costs again is 1; it must be on or off"),
        ({"measure": None}, "measuring pass costs again"),
        ({"kv__cache": "../../etc/passwd"}, "snapshot's id"),
        ({"kv__cache": ["call"]}, "snapshot's id"),
        ({"stop": "x" * 201}, "stop strings"),
        ({"stop": "\n".join("abcdefghijklmnopq")}, "17 stop strings"),
        ({"columns": []}, "No column"),
        ({"columns": ["kv"] * 13}, "13 columns"),
        ({"columns": ["nothing"]}, "no column 'nothing'"),
        ({"columns": [["kv"]]}, "no column"),
        ({"engine": "fake"}, "no engine 'fake'"),
        ({"precision": "bf16"}, "no precision 'bf16'"),
        ({"engine": "torch", "device": "AUTO"}, "no device 'AUTO'"),
        ({"model": 1}, "no model 1"),
        ({"model": "9"}, "no model '9'"),
        ({"speculative__k": 17}, "between 1 and 16"),
        ({"lookahead__seeded": "maybe"}, "on or off"),
        ({"stateless__limit": 0}, "limit is 0"),
        ({"grammar__grammar": "nothing"}, "no grammar 'nothing'"),
        ({"grammar__grammar": {"a": 1}}, "no grammar"),
        ({"grammar__grammar": OWN}, "grammar is empty"),
        ({"grammar__grammar": OWN, "grammar__kind": "exe"}, "grammar kind is 'exe'"),
    ],
)
def test_each_flaw_has_its_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DerbyError) as caught:
        read_race(filled(**changes), MENU)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert HIDDEN not in str(caught.value)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["0", "1", HUB, OWN, "int4", "a/b", "../a", HIDDEN, *STRATEGIES, *shipped()]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(filled())), ANYTHING, max_size=5))
def test_anything_gives_a_race_or_a_sentence(changes: dict[str, Any]) -> None:
    """Nothing but DerbyError is ever raised, and no path that a visitor sent reaches an engine."""
    try:
        race = read_race(filled() | changes, MENU)
    except DerbyError:
        return
    assert isinstance(race, Race)
    offered = {*MENU.models, "a/b"}
    assert race.target.name in offered
    for column in race.columns:
        if isinstance(column.drafting, DraftModelDrafting):
            assert column.drafting.draft in offered | {"hybrid", "trained", *PRECISIONS}


def test_an_empty_submission_is_a_sentence() -> None:
    with pytest.raises(DerbyError):
        read_race({}, MENU)


def test_labels_and_public_texts_hide_paths() -> None:
    assert MENU.labels == {"0": "built-in", "1": "llama", "2": "owner/model"}
    assert MENU.public(f"Loading {HIDDEN} on openvino...") == "Loading llama on openvino..."
