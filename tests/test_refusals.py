"""Refusals: what is typed, and the one sentence that it is answered with. No other file of tests
pins their words.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chat_model
import pytest
import typer
from chat_model import Damage, holding, stating, with_weights, without
from typer.testing import CliRunner

import app
from backend.engines.registry import engine_named
from backend.errors import DerbyError, either
from backend.form import Form, query_of, read_race
from backend.grammar.check import check
from backend.grammar.sources import GrammarSource
from backend.limits import PUBLIC, limits_of
from backend.offer import offer_of
from backend.strategies.registry import strategies
from backend.types import ModelSpec
from page.bench import plan_of

THERE = offer_of(("openvino", "torch"), limits=PUBLIC)

LIMITS = (
    "write NAME=VALUE with one of columns, tokens, prompt_characters, seconds, waiting, models, "
    "benchmark_races, hub."
)
NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer."


def form(**changes: Any) -> Callable[[], object]:
    return lambda: read_race(Form().model_dump() | changes, THERE)


def limit(text: str) -> Callable[[], object]:
    return lambda: limits_of([text], public=False)


def benchmark(text: str) -> Callable[[], object]:
    return lambda: plan_of(text, Form().model_dump(), THERE)


def own(text: str, lineup: str = "grammar:grammar=own", kind: str = "lark") -> Callable[[], object]:
    return form(lineup=lineup, grammar_text=text, grammar_kind=kind)


def schema(text: str) -> Callable[[], object]:
    return lambda: check(GrammarSource("json_schema", text, "test"))


#: What a visitor of a public page, or its operator, types; and the sentence.
REFUSED: list[tuple[Callable[[], object], str]] = [
    (form(lineup="kv\n" * 9), "The line-up has 9 columns; a race has 1 to 8 here."),
    (
        form(lineup="kv\nwarp"),
        (f"Line 2 of the line-up: There is no column 'warp' here: choose {either(strategies())}."),
    ),
    (
        form(lineup="speculative:k=1000"),
        "Line 1 of the line-up: Speculative: k is 1000; it must lie between 1 and 16.",
    ),
    (form(model="/etc"), "There is no model '/etc' here: choose built-in."),
    (
        form(lineup="speculative:draft=/etc/head.safetensors"),
        "Line 1 of the line-up: There is no model '/etc/head.safetensors' here: choose built-in.",
    ),
    (
        form(lineup="transformers:generate=/etc"),
        (
            "Line 1 of the line-up: There is no code '/etc' here: choose none, kv, lookup, eagle3, "
            "hybrid or lookahead."
        ),
    ),
    (
        form(lineup="kv@fake"),
        "Line 1 of the line-up: There is no engine 'fake' here: choose openvino or torch.",
    ),
    (
        form(precision="int1"),
        "There is no precision 'int1' here: choose fp32, int8, int4, int4-exact or int8-exact.",
    ),
    (
        form(lineup="@http://127.0.0.1:80"),
        (
            "Line 1 of the line-up: There is no server 'http://127.0.0.1:80' here: choose another "
            "column."
        ),
    ),
    (form(max_new_tokens=5_000), "max new tokens is 5000; it must lie between 1 and 1024."),
    (
        form(prompt="a" * 20_000),
        "The prompt of 20,000 characters is too long: shorten it to 16,384.",
    ),
    (form(prompt="  "), "The prompt is empty: type a question or pick an example."),
    (form(prompt="a\ud800"), "Character 2 of the prompt (U+D800) is invalid: remove it."),
    (form(prompt='{{gen "a"'), r"Line 1, column 1: {{ without }}; for plain text write \{{."),
    (
        form(temperature="warm"),
        (
            "'temperature' is 'warm': Input should be a valid number, unable to parse string as a "
            "number."
        ),
    ),
    (form(tempreature=1), "'tempreature' is 1: Extra inputs are not permitted."),
    (
        form(stop="a\n" * 40),
        "There are 40 stop strings of up to 1 characters; 16 of up to 200 are allowed.",
    ),
    (
        lambda: query_of({"prompt": "a" * 8_000}),
        (
            "The link would have 8,007 characters, and 8,000 are allowed: shorten the prompt or "
            "the grammar, or send the race's file."
        ),
    ),
    (
        own(" "),
        "Line 1 of the line-up: The grammar is empty: write one or choose a ready-made one.",
    ),
    (
        schema('{"properties": {"a": {"$ref": "#", "minProperties": 1}}}'),
        (
            "The grammar cannot be followed (circular references with sibling keys are not "
            "supported: json-schema:///#): mend or simplify that part."
        ),
    ),
    (
        own("a" * 70_000),
        "Line 1 of the line-up: grammar size is 70000; it must lie between 1 and 65536.",
    ),
    (
        own("a", "openvino_genai:grammar=own", "regex"),
        (
            "Line 1 of the line-up: openvino-genai takes no grammar of your own on this page: name "
            "a ready-made one, such as grammar=person, or choose a column such as grammar."
        ),
    ),
    (
        form(lineup="kv@torch/fp32\nkv@torch/bf16\nkv@openvino/int8\nkv@openvino/int4"),
        "The columns run on 4 models; a race has 3 here: remove some.",
    ),
    (
        benchmark("a\n" * 13),
        "13 runs are more than the 12 that a benchmark may have here: give fewer prompts.",
    ),
    (
        benchmark('[{"instruction": "Why?"}]'),
        (
            "The prompt set, item 1 is no question ('turns': Field required): write a prompt a "
            "line, or JSON with prompt, turns or messages."
        ),
    ),
    (benchmark("a" * 300_000), "The prompts have 300,000 characters; 200,000 are allowed."),
    (limit("columns"), f"The limit 'columns' is '': {NO_INTEGER}"),
    (limit("colums=3"), f"There is no limit 'colums': {LIMITS}"),
    (
        limit("columns=-1"),
        "The limit 'columns' is '-1': Input should be greater than or equal to 1.",
    ),
]


@pytest.mark.parametrize(("read", "sentence"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_is_typed_is_answered_with_a_sentence(
    read: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(DerbyError) as refusal:
        read()
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("options", "beginning"),
    [
        (["--port", "65536"], "Nothing can be served at 127.0.0.1, port 65536"),
        (["--host", "no.such.host.invalid"], "Nothing can be served at no.such.host.invalid"),
        (["--host", "192.0.2.1"], "Nothing can be served at 192.0.2.1"),
        (["--model", "./nowhere"], "There is no model folder './nowhere': check the path."),
    ],
)
def test_a_launch_that_cannot_be_is_one_sentence(options: list[str], beginning: str) -> None:
    launch = typer.Typer()
    launch.command()(app.main)
    answer = CliRunner().invoke(launch, ["--fake", *options])
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith(beginning)
    assert answer.stderr.count("\n") == 1


def test_a_space_that_is_lent_a_gpu_call_by_call_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    test_a_launch_that_cannot_be_is_one_sentence([], "A ZeroGPU Space lends its GPU call by call")


ONE = "model.layers.1.mlp.up_proj.weight"

#: What is wrong with a checkpoint, and what the sentence names.
CHECKPOINTS: dict[str, tuple[Damage, str]] = {
    "one missing": (with_weights(lambda tensors: tensors.pop(ONE)), ONE),
    "a layer missing": (stating("config.json", num_hidden_layers=4), "layers.3"),
    "other shapes": (stating("config.json", intermediate_size=40), "down_proj"),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        "tokenizer.json",
    ),
    "config is a list": (holding("config.json", "[]"), "config.json"),
    "config is cut": (holding("config.json", '{"model_type": "ll'), "config.json"),
    "config without a type": (holding("config.json", "{}"), "config.json"),
    "tokenizer of nothing": (holding("tokenizer.json", "{}"), "added_tokens"),
    "its own code": (
        stating("config.json", model_type="mystery", auto_map={"AutoConfig": "mystery.Config"}),
        "standard architecture",
    ),
}


#: Those that OpenVINO reads by itself; what reads the tokenizer is the same.
OPENVINO = ("one missing", "a layer missing", "other shapes", "config is cut", "its own code")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that can be chatted with."""
    return chat_model.make(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("what", "engine"),
    [*((what, "torch") for what in CHECKPOINTS), *((what, "openvino") for what in OPENVINO)],
)
def test_a_damaged_checkpoint_is_refused(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    engine: str,
) -> None:
    damage, named = CHECKPOINTS[what]
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    damage(folder)
    with pytest.raises(DerbyError, match=named) as refusal:
        engine_named(engine).open(ModelSpec(str(folder), engine), lambda _: None)
    assert len(str(refusal.value)) < 400
    assert "trust_remote_code" not in str(refusal.value)
