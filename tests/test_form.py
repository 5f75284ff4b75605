"""A form makes a race, a link says the form again, and limits are what an operator sets. What is
refused stands in test_refusals.py.
"""

import re
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.form import (
    EXAMPLES,
    PRESETS,
    Form,
    form_from,
    query_of,
    read_race,
    settings_table,
    usual_lineup,
)
from backend.grammar.sources import shipped
from backend.limits import PRIVATE, PUBLIC, VARIABLE, Limits, limits_of
from backend.offer import offer_of, titled
from backend.strategies.column import settings_of
from backend.strategies.registry import GGUF_COLUMNS, strategies
from backend.strategies.settings import WholeNumber

HERE, THERE = (offer_of(("openvino", "torch"), limits=limits) for limits in (PRIVATE, PUBLIC))


def test_the_page_s_defaults_are_a_race_of_the_first_example() -> None:
    race = read_race(Form(), THERE)
    assert race.request.prompt == EXAMPLES[0].prompt
    assert [str(column) for column in race.columns] == EXAMPLES[0].lineup.split("\n")
    assert (race.target.name, race.target.precision) == ("built-in", "fp32")


def test_a_question_about_a_tag_is_asked_with_a_backslash_before_it() -> None:
    assert read_race(Form(prompt=r"\{{gen 'x'}}?"), THERE).request.text == "{{gen 'x'}}?"


def test_no_line_up_is_the_usual_one_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "m.GGUF").touch()
    there = offer_of(("openvino",), ["built-in", *titled([str(tmp_path / "m.GGUF")], ["openvino"])])
    columns = read_race(Form(model="m.GGUF"), there).columns
    assert tuple(map(str, columns)) == GGUF_COLUMNS
    assert usual_lineup("m.GGUF", there).split("\n") == [*GGUF_COLUMNS]
    assert usual_lineup("", there) == EXAMPLES[0].lineup


@pytest.mark.parametrize("lineup", [choice.lineup for choice in (*EXAMPLES, *PRESETS)])
def test_every_example_and_preset_can_be_raced_by_visitors(lineup: str) -> None:
    assert read_race(Form(lineup=lineup), THERE).columns


def test_the_page_s_owner_may_name_what_is_not_listed() -> None:
    lineup = "kv:model=owner/model\n@http://127.0.0.1:80\nopenvino_genai:grammar=own"
    own = {"grammar_kind": "regex", "grammar_text": f"[ab]+{'a' * 70_000}"}
    race = read_race(Form().model_dump() | {"lineup": lineup} | own, HERE)
    assert race.columns[0].model.name == "owner/model"
    assert race.columns[2].settings()["grammar"].text == own["grammar_text"]


@given(
    st.builds(
        Form,
        prompt=st.text(max_size=400),
        seed=st.integers(0, 9),
        chat=st.booleans(),
        top_p=st.floats(0, 1),
    )
)
def test_a_link_says_the_form_again(form: Form) -> None:
    query = dict(parse_qsl(query_of(form.model_dump()), keep_blank_values=True))
    assert form_from(query) == form


def test_a_link_is_short_and_what_it_says_beside_is_ignored() -> None:
    assert query_of(Form().model_dump()) == ""
    cleared = {"top_k": None, "seed": 3}
    assert query_of(Form().model_dump() | cleared) == "seed=3"
    assert form_from({"__theme": "dark", "tab": "history", "seed": "3"}) == Form(seed=3)


def test_the_table_of_settings_names_every_strategy_and_value() -> None:
    table = settings_table()
    assert {name for name, _, _ in table} == set(strategies())
    texts = {(name, setting.partition("=")[0]): text for name, setting, text in table}
    for name, strategy in strategies().items():
        for setting in settings_of(strategy).values():
            values = getattr(setting, "options", ())
            values = (*shipped(), "own", "none") if setting.name == "grammar" else values
            values = (setting.low, setting.high) if isinstance(setting, WholeNumber) else values
            assert set(map(str, values)) <= set(re.findall(r"[\w-]+", texts[name, setting.name]))


def test_options_win_over_the_environment_and_that_over_the_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "columns=3, tokens=50")
    limits = limits_of(["tokens=60"], public=True)
    assert (limits.columns, limits.tokens, limits.waiting) == (3, 60, PUBLIC.waiting)


def test_the_operator_s_page_lists_every_limit_and_the_public_ones_are_no_wider() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "operate.md").read_text("utf-8")
    for name, field in Limits.model_fields.items():
        private, public = getattr(PRIVATE, name), getattr(PUBLIC, name)
        assert public <= private
        assert f"| `{name}` | {field.description} | {private:,} | {public:,} |" in page, name
