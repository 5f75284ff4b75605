"""A column in words: whatever users write is a column or one sentence, a column is written so that
it is read back, no longer than need be, and each kind of setting takes its own values alone.
"""

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from loop_runs import LOCAL
from race_records import ANYTHING

from backend.engines.registry import engines
from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.strategies.column import (
    RACE_MODEL,
    Column,
    OwnModel,
    baseline_of,
    default_column,
    names_of,
    parse_column,
    settings_of,
)
from backend.strategies.registry import strategies
from backend.strategies.settings import (
    Choice,
    Flag,
    GrammarChoice,
    ModelChoice,
    ServerChoice,
    Setting,
    WholeNumber,
    grammar_choice,
)
from backend.types import ModelSpec

OWN = GrammarSource("regex", "a+", "mine")
MODEL_NAMES = st.from_regex(r"[\w./~-]{1,30}", fullmatch=True)
SERVERS = ["http://h:1", "https://a.b/c/v1", "http://[::1]:8", "vllm"]


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    """Any value of a setting, its default often."""
    match setting:
        case WholeNumber(low=low, high=high):
            values = st.integers(low, high)
        case Flag():
            values = st.booleans()
        case Choice(options=options):
            values = st.sampled_from(options)
        case ModelChoice(options=options):
            values = st.sampled_from(options) | MODEL_NAMES
        case ServerChoice():
            values = st.sampled_from(SERVERS)
        case GrammarChoice():
            values = st.sampled_from([None, OWN, *shipped().values()])
        case _:
            values = MODEL_NAMES
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
    """The user's own grammar, which goes along with columns that name it."""
    return OWN if column.settings().get("grammar") == OWN else None


@given(columns(), columns())
def test_a_column_is_written_so_that_it_alone_is_read_back(one: Column, other: Column) -> None:
    assert parse_column(str(one), own_of(one)) == one
    assert "\n" not in str(one)
    assert (str(one) == str(other)) == (one == other)
    assert len(set(names_of([one, other, one]))) == 3


@given(columns())
def test_a_column_is_written_no_longer_than_need_be(column: Column) -> None:
    """Without any setting that is written it is another column, but for the usual W, N and G, of
    which one would do.
    """
    head, _, settings = str(column).partition(":")
    parts = settings.split(",") if settings else []
    assume(not {"window=5", "level=3", "guesses=5"} <= set(parts))
    for index in range(len(parts)):
        rest = ",".join(parts[:index] + parts[index + 1 :])
        own = None if parts[index] == "grammar=own" else own_of(column)
        assert parse_column(f"{head}:{rest}", own) != column


@pytest.mark.parametrize(
    ("place", "model", "label"),
    [
        ("@int8", OwnModel(precision="int8"), "int8"),
        ("@torch/bf16/CUDA", OwnModel("", "torch", "bf16", "CUDA"), "torch, bf16, CUDA"),
        ("@GPU.1", OwnModel(device="GPU.1"), "GPU.1"),
        (":model=owner/model", OwnModel("owner/model"), "model"),
        ("@int8:model=./x.y", OwnModel("./x.y", "", "int8"), "x.y, int8"),
        ("", RACE_MODEL, ""),
    ],
)
def test_a_column_may_run_on_a_model_of_its_own(place: str, model: OwnModel, label: str) -> None:
    for name in LOCAL:
        column = parse_column(f"{name}{place}")
        assert column == default_column(name).on(model)
        if label:
            assert names_of([column, default_column("server")])[0] == column.title
            assert names_of([column, default_column(name)])[0] == f"{column.title} ({label})"


@pytest.mark.parametrize(
    ("lineup", "names"),
    [
        ("lookup:k=4,auto=true lookup:k=4", "Prompt lookup (auto=true), Prompt lookup"),
        ("lookup lookup:k=8", "Prompt lookup, Prompt lookup (k=8)"),
        ("kv kv speculative", "KV reuse #1, KV reuse #2, Speculative"),
        ("kv speculative@int4-exact", "KV reuse, Speculative (int4-exact)"),
        ("kv lookup:grammar=date", "KV reuse, Prompt lookup (grammar=date)"),
        ("kv:model=/a/b/one kv:model=c/two", "KV reuse (one), KV reuse (two)"),
        ("kv llamacpp:model=/a/b.gguf", "KV reuse, llama.cpp (b.gguf)"),
        ("speculative speculative:draft=~/a/b/", "Speculative, Speculative (draft=b)"),
        ("@http://h:1 llamacpp", "Server, llama.cpp"),
        ("@http://h:1 @https://h/v1", "Server (h:1), Server (https://h/v1)"),
        ("@vllm:model=a/b @vllm:model=c", "Server (a/b), Server (c)"),
    ],
)
def test_a_name_says_what_differs_in_the_line_up_and_no_more(lineup: str, names: str) -> None:
    assert names_of([parse_column(column) for column in lineup.split()]) == names.split(", ")


@pytest.mark.parametrize(
    ("column", "target"),
    [
        ("kv", ModelSpec("a/b", "openvino", "int8", "GPU")),
        ("kv@int4", ModelSpec("a/b", "openvino", "int4", "GPU")),
        ("kv@openvino/CPU", ModelSpec("a/b", "openvino", "int8", "CPU")),
        ("kv:model=c/d", ModelSpec("c/d", "openvino", "int8", "GPU")),
        ("kv@torch", ModelSpec("a/b", "torch", "fp32", "CPU")),
        ("openvino_genai@CPU", ModelSpec("a/b", "openvino_genai", "int8", "CPU")),
        ("transformers", ModelSpec("a/b", "transformers", "fp32", "CPU")),
        ("kv@torch/bf16/CUDA:model=c/d", ModelSpec("c/d", "torch", "bf16", "CUDA")),
    ],
)
def test_what_a_column_does_not_name_is_the_races_choice_or_its_engines(
    column: str, target: ModelSpec
) -> None:
    assert parse_column(column).target(ModelSpec("a/b", "openvino", "int8", "GPU")) == target


def test_copies_of_a_columns_own_model_are_no_other_models() -> None:
    for draft in ("hybrid", "trained", "int4", "int8", "bf16"):
        assert parse_column(f"speculative:draft={draft}").drafts == {}
    assert parse_column("speculative:draft=a/b").drafts == {"draft": "a/b"}
    assert parse_column("kv:model=llama").drafts == {}


def test_a_grammar_of_ones_own_goes_where_it_is_asked_for() -> None:
    assert parse_column("grammar", OWN).grammar == OWN
    assert parse_column("lookup:grammar=own,k=3", OWN).grammar == OWN
    assert parse_column("lookup", OWN).grammar is None
    assert parse_column("grammar:grammar=date", OWN).grammar == shipped()["date"]
    assert parse_column("grammar:grammar=none", OWN).grammar is None
    forged = GrammarSource("regex", "a+", "date")
    assert grammar_choice(None).text(forged) == "own", "a shipped name does not make it shipped"


@pytest.mark.parametrize(
    ("written", "text", "automatic"),
    [
        ("speculative", "speculative", True),
        ("speculative:auto=false", "speculative:k=8", False),
        ("speculative:auto=false,k=4", "speculative:k=4", False),
        ("speculative:k=4,auto=true", "speculative:auto=true,k=4", True),
        (" lookahead:window=7, level=4,", "lookahead:window=7,level=4", False),
        ("grammar:grammar=none", "grammar:grammar=none", False),
        ("server:at=http://a:80,model=m:kv:k=4", "@http://a:80:model=m:kv:k=4", False),
    ],
)
def test_naming_a_size_fixes_it_and_is_what_is_written(
    written: str, text: str, automatic: bool
) -> None:
    column = parse_column(written)
    assert (str(column), column.automatic) == (text, automatic)
    assert parse_column(text) == column


MISTAKES = """nope KV kv:window=5 server@openvino:at=http://127.0.0.1:1 stateless:k=3
    kv:cache=mine lookahead:window lookahead:window= lookahead:=5 lookahead:window=5:level=3
    lookahead:window=99 lookahead:auto=best kv:model= kv@ kv@int8/ kv@openvino/torch
    kv@int8/openvino kv@int8/int4 kv@torch/int8 kv@CPU/int8 kv@CPU/GPU kv@../x kv@int8@CPU
    kv@torch/cuda:1 kv@openvino/int3 kv@int3 openvino_genai@int3
    kv@cpu kv:model=/a,b grammar:grammar=own"""


@pytest.mark.parametrize("text", [*MISTAKES.split(), "", "kv:model=" + "x" * 201])
def test_a_mistake_is_one_sentence(text: str) -> None:
    with pytest.raises(DerbyError) as error:
        parse_column(text)
    assert "\n" not in str(error.value)


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


SETTINGS = [
    pytest.param(default_column(name), setting, id=f"{name}-{setting.name}")
    for name, strategy in strategies().items()
    for setting in settings_of(strategy).values()
]


@pytest.mark.parametrize(("column", "setting"), SETTINGS)
@given(st.data())
@settings(max_examples=20)
def test_a_setting_takes_its_own_values_in_any_form_and_no_other(
    column: Column, setting: Setting, data: st.DataObject
) -> None:
    value = data.draw(values_of(setting))
    forms: list[Any] = [value, setting.text(value)]
    wrong: list[Any] = ["", [], 10**400]
    match setting:
        case WholeNumber(low=low, high=high):
            forms += [float(value), f" {value} "]
            wrong += [low - 1, high + 1, value + 0.5, None]
        case Flag():
            forms += [int(value), str(value)]
            wrong += ["maybe", 2, None]
        case Choice():
            wrong += ["none of them", None]
        case GrammarChoice():
            forms[1:] = [] if forms[1] == "own" else forms[1:]  # whose it is the text does not say
            wrong += ["none of them"]
        case _:
            wrong += ["a,b", "x" * 201, None]
    for form in forms:
        changed = column.with_settings({setting.name: form}).settings()
        assert changed == {**column.settings(), **setting.fixes, setting.name: value}
        assert type(changed[setting.name]) is type(value)
    for form in wrong:
        with pytest.raises(DerbyError):
            column.with_settings({setting.name: form})
    with suppress(DerbyError):  # any other exception fails this test
        taken: Any = setting.parse(data.draw(ANYTHING), "Column")
        assert setting.parse(taken, "Column") == taken
        assert setting.parse(setting.text(taken), "Column") == taken


@pytest.mark.parametrize(
    ("lineup", "baseline"),
    [
        ("stateless kv lookup kv:grammar=date", 1),
        ("speculative openvino_genai:lookup=4 openvino_genai llamacpp", 2),
        ("transformers:lookup=4 transformers @http://a kv", 3),
        ("llamacpp:spec=ngram-simple llamacpp", 1),
        ("@http://a @http://b", 0),
        ("speculative stateless openvino_genai:draft=int4", None),
    ],
)
def test_the_baseline_is_the_first_plain_column_ours_first(
    lineup: str, baseline: int | None
) -> None:
    columns = [parse_column(name) for name in lineup.split()]
    assert baseline_of(columns) == baseline
    if baseline is not None:
        assert baseline_of(columns, [baseline]) != baseline
