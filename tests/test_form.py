"""A form makes a race, or one sentence about what is wrong with it."""

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.form import (
    EXAMPLES,
    PRESETS,
    Form,
    form_from,
    query_of,
    read_form,
    read_race,
    settings_table,
)
from backend.limits import PRIVATE, PUBLIC
from backend.offer import offer_of
from backend.strategies.registry import strategies

HERE, THERE = (offer_of(("openvino", "torch"), limits=limits) for limits in (PRIVATE, PUBLIC))


def test_the_page_s_defaults_are_a_race_of_the_first_example() -> None:
    race = read_race(Form(), THERE, "somebody")
    assert race.request.prompt == EXAMPLES[0].prompt
    assert [str(column) for column in race.columns] == EXAMPLES[0].lineup.split("\n")
    assert (race.target.name, race.target.precision, race.visitor) == (
        "built-in",
        "fp32",
        "somebody",
    )


@pytest.mark.parametrize("lineup", [each.lineup for each in (*EXAMPLES, *PRESETS)])
def test_every_example_and_preset_can_be_raced_by_visitors(lineup: str) -> None:
    assert read_race(Form(lineup=lineup), THERE).columns


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no column": ({"lineup": " \n"}, "0 columns"),
    "too many columns": ({"lineup": "kv\n" * 9}, "9 columns"),
    "an unknown column": ({"lineup": "kv\nwarp"}, "Line 2"),
    "a bad setting": ({"lineup": "speculative:k=1000"}, "1000"),
    "an unknown model": ({"model": "/etc"}, "/etc"),
    "another model of the Hub": ({"model": "owner/model"}, "owner/model"),
    "a column's model by its path": ({"lineup": "kv:model=/etc"}, "/etc"),
    "a draft by its path": ({"lineup": "speculative:draft=/etc/head.safetensors"}, "/etc"),
    "an unknown engine": ({"engine": "abacus"}, "abacus"),
    "an unknown precision": ({"precision": "int1"}, "int1"),
    "a server's address": ({"lineup": "@http://127.0.0.1:80"}, "127.0.0.1"),
    "too many tokens": ({"max_new_tokens": 5_000}, "5000"),
    "a long prompt": ({"prompt": "a" * 20_000}, "20,000"),
    "no prompt": ({"prompt": "  "}, "empty"),
    "half a surrogate pair": ({"prompt": "a\ud800"}, "prompt"),
    "a program with a flaw": ({"prompt": '{{gen "a"'}, "column 1"),
    "a hot temperature": ({"temperature": 9.0}, "9.0"),
    "no number": ({"temperature": "warm"}, "warm"),
    "not finite": ({"top_p": float("nan")}, "nan"),
    "an unknown argument": ({"tempreature": 1}, "tempreature"),
    "a huge seed": ({"seed": 2**70}, "seed"),
    "many stop strings": ({"stop": "a\n" * 40}, "40 stop strings"),
    "an empty grammar": ({"lineup": "grammar:grammar=own", "grammar_text": " "}, "empty"),
    "a long grammar": ({"lineup": "grammar:grammar=own", "grammar_text": "a" * 70_000}, "65536"),
    "a library's own grammar": (
        {"lineup": "openvino_genai:grammar=own", "grammar_text": "a", "grammar_kind": "regex"},
        "ready-made",
    ),
    "many models": (
        {"lineup": "kv@torch/fp32\nkv@torch/bf16\nkv@openvino/int8\nkv@openvino/int4"},
        "4 models",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_visitors_may_not_ask_for_is_refused_in_a_sentence(what: str) -> None:
    changes, named = REFUSED[what]
    with pytest.raises(DerbyError) as error:
        read_race(Form().model_dump() | changes, THERE)
    sentence = str(error.value)
    assert named in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 400


def test_the_page_s_owner_may_name_what_is_not_listed() -> None:
    lineup = "kv:model=owner/model\n@http://127.0.0.1:80\nopenvino_genai:grammar=own"
    own = {"grammar_kind": "regex", "grammar_text": f"[ab]+{'a' * 70_000}"}
    race = read_race(Form().model_dump() | {"lineup": lineup} | own, HERE)
    assert race.columns[0].model.name == "owner/model"
    assert race.columns[2].settings()["grammar"].text == own["grammar_text"]


@given(
    st.builds(
        Form, prompt=st.text(), seed=st.integers(0, 9), chat=st.booleans(), top_p=st.floats(0, 1)
    )
)
def test_a_link_says_the_form_again(form: Form) -> None:
    query = dict(parse_qsl(query_of(form.model_dump()), keep_blank_values=True))
    assert form_from(query) == form


def test_a_link_is_short_and_what_it_says_beside_is_ignored() -> None:
    assert query_of(Form().model_dump()) == ""
    assert query_of(Form(seed=3).model_dump()) == "seed=3"
    assert form_from({"__theme": "dark", "tab": "history", "seed": "3"}) == Form(seed=3)


def test_values_that_a_browser_sends_as_text_are_read() -> None:
    assert read_form({"max_new_tokens": "12", "chat": "false"}).max_new_tokens == 12


def test_the_table_of_settings_names_every_strategy() -> None:
    assert {name for name, _, _ in settings_table()} == set(strategies())
