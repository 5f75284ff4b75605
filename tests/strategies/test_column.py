"""A column in words: what users may write, what it means, and that it is written back the same."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from lib import LOCAL

from backend.engines.registry import engines
from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.strategies.column import (
    RACE_MODEL,
    Column,
    OwnModel,
    default_column,
    parse_column,
    settings_of,
)
from backend.strategies.registry import strategies
from backend.strategies.settings import (
    Choice,
    Flag,
    ModelChoice,
    ServerChoice,
    Setting,
    TextLine,
    WholeNumber,
)
from backend.types import ModelSpec

OWN = GrammarSource("regex", "a+", "mine")
MODEL_NAMES = st.from_regex(r"[\w./~-]{1,30}", fullmatch=True)


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    """Any value of a setting, its default often."""
    match setting:
        case WholeNumber(low=low, high=high):
            values = st.integers(low, high)
        case Flag():
            values = st.booleans()
        case Choice(options=options):
            values = st.sampled_from([value for value, _ in options])
        case ModelChoice(options=options):
            values = st.sampled_from([value for value, _ in options]) | MODEL_NAMES
        case ServerChoice():
            values = st.sampled_from(["http://h:1", "https://a.b/c/v1", "http://[::1]:8", "vllm"])
        case TextLine():
            values = MODEL_NAMES
        case _:
            values = st.sampled_from([None, OWN, *shipped().values()])
    return st.just(setting.default) | values


@st.composite
def own_models(draw: st.DrawFn) -> OwnModel:
    engine = draw(st.sampled_from(["", *engines()]))
    known = [engines()[engine]] if engine else engines().values()
    precision = draw(st.sampled_from(["", *(p for e in known for p in e.precisions)]))
    device = draw(st.sampled_from(["", "CPU", "GPU", "GPU.1", "CUDA", "AUTO"]))
    return OwnModel(draw(st.just("") | MODEL_NAMES), engine, precision, device)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """Any column, each setting the usual one or not."""
    name = draw(st.sampled_from(list(strategies())))
    fields = settings_of(strategies()[name]).values()
    values = tuple((field.name, draw(values_of(field))) for field in fields)
    local = strategies()[name].ours
    return Column(name, values, draw(own_models()) if local else RACE_MODEL)


def own_of(column: Column) -> GrammarSource | None:
    """The user's own grammar, given along with columns that ask for it."""
    return OWN if column.settings().get("grammar") == OWN else None


@given(columns())
def test_a_column_is_written_so_that_it_is_read_back(column: Column) -> None:
    assert parse_column(str(column), own_of(column)) == column
    assert "\n" not in str(column)


@given(columns(), columns())
def test_columns_that_differ_are_written_differently(one: Column, other: Column) -> None:
    assert (str(one) == str(other)) == (one == other)
    if one.name == other.name:
        assert (one.label == other.label) == (one == other)


@given(columns())
def test_a_column_is_written_no_longer_than_need_be(column: Column) -> None:
    """Leaving out any setting that is written makes another column; but the usual W, N and G are
    written all three, though one of them would do for auto=off (see test_settings).
    """
    head, _, settings = str(column).partition(":")
    parts = settings.split(",") if settings else []
    assume(not {"window=5", "level=3", "guesses=5"} <= set(parts))
    for left_out in range(len(parts)):
        rest = ",".join(parts[:left_out] + parts[left_out + 1 :])
        own = None if parts[left_out] == "grammar=own" else own_of(column)
        assert parse_column(f"{head}:{rest}", own) != column


def test_a_grammar_that_is_taken_off_is_written() -> None:
    """It was taken for what goes without saying, and a freed column came back with its grammar."""
    freed = parse_column("grammar:grammar=none")
    assert str(freed) == "grammar:grammar=none"
    assert freed.label == "Grammar (grammar=none)"


@pytest.mark.parametrize(
    ("place", "model", "label"),
    [
        ("@int8", OwnModel(precision="int8"), "int8"),
        ("@openvino/int8", OwnModel("", "openvino", "int8"), "openvino/int8"),
        ("@torch/bf16/CUDA", OwnModel("", "torch", "bf16", "CUDA"), "torch/bf16/CUDA"),
        ("@torch", OwnModel("", "torch"), "torch"),
        ("@int4-exact/CPU", OwnModel("", "", "int4-exact", "CPU"), "int4-exact/CPU"),
        ("@GPU.1", OwnModel(device="GPU.1"), "GPU.1"),
        ("@fp32/GPU", OwnModel("", "", "fp32", "GPU"), "fp32/GPU"),
        ("@ torch / CPU ", OwnModel("", "torch", "", "CPU"), "torch/CPU"),
        (":model=owner/model", OwnModel("owner/model"), "owner/model"),
        ("@int8:model=./x.y", OwnModel("./x.y", "", "int8"), "./x.y, int8"),
        ("", RACE_MODEL, ""),
    ],
)
def test_a_column_may_run_on_a_model_of_its_own(place: str, model: OwnModel, label: str) -> None:
    for name in LOCAL:
        column = parse_column(f"{name}{place}")
        assert column == default_column(name).on(model)
        assert column.label == (f"{column.title} ({label})" if label else column.title)
    bound = parse_column(f"lookup{place}{',' if ':' in place else ':'}k=3")
    assert bound == parse_column("lookup:k=3").on(model)


def test_what_a_column_does_not_name_is_the_races_choice_on_the_same_engine() -> None:
    race = ModelSpec("a/b", "openvino", "int8", "GPU")
    assert default_column("kv").target(race) == race
    assert parse_column("kv@int4").target(race) == replace(race, precision="int4")
    assert parse_column("kv@openvino").target(race) == race
    assert parse_column("kv@openvino/CPU").target(race) == replace(race, device="CPU")
    assert parse_column("kv:model=c/d").target(race) == replace(race, name="c/d")


def test_on_another_engine_it_is_that_engines_usual_choice() -> None:
    """The race's int8 copy on a GPU would be no model that torch can run."""
    race = ModelSpec("a/b", "openvino", "int8", "GPU")
    assert parse_column("kv@torch").target(race) == ModelSpec("a/b", "torch", "fp32", "CPU")
    assert parse_column("kv@torch/bf16/CUDA:model=c/d").target(race) == ModelSpec(
        "c/d", "torch", "bf16", "CUDA"
    )


def test_a_columns_models_can_be_renamed() -> None:
    """The page takes labels. A draft that is no model's name is left as it is."""

    def named(text: str) -> Column:
        return parse_column(text).named(lambda name: f"/models/{name}")

    assert named("kv:model=llama").model == OwnModel("/models/llama")
    assert named("speculative:draft=llama").settings()["draft"] == "/models/llama"
    for draft in ("hybrid", "trained", "int4", "int8", "bf16"):
        assert named(f"speculative:draft={draft}").settings()["draft"] == draft
    assert named("speculative") == parse_column("speculative")
    assert parse_column("speculative:draft=a/b").drafts == {"draft": "a/b"}
    assert parse_column("speculative:draft=int4").drafts == parse_column("kv").drafts == {}


def test_a_grammar_of_ones_own_goes_where_it_is_asked_for() -> None:
    assert parse_column("grammar", OWN).grammar == OWN
    assert parse_column("lookup:grammar=own,k=3", OWN).grammar == OWN
    assert parse_column("lookup", OWN).grammar is None
    assert parse_column("grammar:grammar=date", OWN).grammar == shipped()["date"]
    assert parse_column("grammar:grammar=none", OWN).grammar is None
    with pytest.raises(DerbyError, match="name its file"):
        parse_column("grammar:grammar=own")


def test_several_settings_at_once_leave_the_others_alone() -> None:
    column = parse_column(" lookahead:window=7, level=4,")
    asked = {"auto": False, "window": 7, "level": 4}
    assert column.settings() == {**default_column("lookahead").settings(), **asked}
    assert column.label == "Lookahead (window=7, level=4)"
    assert str(column) == "lookahead:window=7,level=4"
    assert str(column.with_settings({"auto": True})) == "lookahead:auto=true,window=7,level=4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column ''"),
        ("nope", "column 'nope'"),
        ("KV", "column 'KV'"),
        ("kv:window=5", "'window' here: choose cache or grammar"),
        ("lookup:window=5", "'window' here: choose auto, k, ngram, cache"),
        ("server@openvino:at=http://127.0.0.1:1", "'openvino' in column 'Server'"),
        ("stateless:cache=session", "'cache' here: choose grammar"),
        ("kv:cache=mine", "KV reuse: Cache is 'mine'; it must be 'fresh'"),
        ("lookahead:window", "'lookahead:window'"),
        ("lookahead:window=", "whole number"),
        ("lookahead:=5", "'' here"),
        ("lookahead:window=5:level=3", "whole number"),
        ("lookahead:window=99", "Lookahead: Window is 99; it must lie between 2 and 32"),
        ("lookahead:auto=best", "Auto is 'best'; it must be true or false"),
        ("kv:model=", "KV reuse: model is ''; it must have at least 1"),
        ("kv:model=" + "x" * 201, "it must have at most 200"),
        ("kv@", "'' in column 'kv@'"),
        ("kv@int8/", "'' in column 'kv@int8/'"),
        ("kv@openvino/torch", "'torch' in column"),
        ("kv@int8/openvino", "'openvino' in column"),
        ("kv@int8/int4", "'int4' in column"),
        ("kv@torch/int8", "'int8' in column"),
        ("kv@CPU/int8", "'int8' in column"),
        ("kv@CPU/GPU", "'GPU' in column"),
        ("kv@../x", "'..' in column"),
        ("kv@int8@CPU", "'int8@CPU' in column"),
        ("kv@torch/cuda:1", "'kv@torch/cuda:1'"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(DerbyError) as caught:
        parse_column(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_servers_column_says_where_and_what() -> None:
    column = parse_column("@http://a.b:8000:model=built-in:kv:k=4")
    assert column.label == "Server (a.b:8000, built-in:kv:k=4)"
    assert column == parse_column("server:at=http://a.b:8000,model=built-in:kv:k=4")
    assert parse_column("@vllm").label == "Server (vllm)"


@pytest.mark.parametrize("path", ["/models/a,b", 'a "b", c', "/a,b,k=3", "/usual", '"'])
def test_a_path_with_a_comma_survives_the_column_s_text(path: str) -> None:
    for text in ("speculative:k=4", "kv:cache=session"):
        setting = {"draft": path} if text.startswith("spec") else {}
        column = parse_column(text).with_settings(setting).on(OwnModel(path, "torch"))
        assert parse_column(str(column)) == column
    assert str(parse_column('kv:"model=/a,b"')) == 'kv:"model=/a,b"'
    assert parse_column('@http://a:1:"model=a,b"').settings()["model"] == "a,b"
    with pytest.raises(DerbyError, match="/a,b"):
        parse_column('kv:"model=/a,b')


WRITTEN = r"(kv|lookup|lookahead|stateless|)(@[a-z0-9/. ]*)?:[a-z0-9=,. -]*"


@given(st.one_of(st.text(), st.from_regex(WRITTEN)))
@example('server:"at=a,b"')
def test_anything_else_is_a_column_or_a_sentence(text: str) -> None:
    try:
        column = parse_column(text)
    except DerbyError:
        return  # any other exception fails this test
    name = re.split("[@:]", text.strip())[0] or "server"
    assert column.name == name
    assert parse_column(str(column)) == column
