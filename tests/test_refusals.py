"""What is refused, and in which words: the one place where sentences of refusals are pinned.

Each table has how to provoke a refusal beside its sentence. Other tests state what is refused, not
how that is said.
"""

# ruff: noqa: E501 (each sentence stands whole)

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import chat_model
import pytest
from damaged import Damage, holding, stating, with_weights, without
from filled import MENU, filled

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.limits import Limits, limits_of
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column
from backend.strategies.registry import DEFAULT_COLUMNS, strategies
from backend.types import ModelSpec, Request
from backend.web.form import read_race
from backend.web.lineup_editor import answer
from page.site import proxies_of

#: Those of plug-ins, too, where some are installed.
COLUMNS = ", ".join(strategies())

#: Fields of the page's form that are wrong, and the sentence.
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": " "}, "The prompt is empty: type a question or pick an example."),
    ({"prompt": "x" * 70000}, "The prompt of 70,000 characters is too long: 65,536 are allowed."),
    (
        {"prompt": "\ud800"},
        "Character 1 of the prompt is invalid (a byte that is not UTF-8, or half of a surrogate pair): remove it.",
    ),
    ({"max_new_tokens": None}, "max new tokens is empty; it must be a whole number."),
    ({"max_new_tokens": 0}, "max new tokens is 0; it must lie between 1 and 8192."),
    ({"temperature": float("nan")}, "temperature is nan; it must be a finite number."),
    ({"temperature": -1}, "temperature is -1.0; it must lie between 0.0 and 5.0."),
    ({"top_p": 0}, "top-p is 0.0; it must lie between 0.01 and 1.0."),
    (
        {"seed": 10000000000000000000000000000000000000000},
        "seed is 10000000000000000000000000000000000000000; it must lie between -9223372036854775808 and 9223372036854775807.",
    ),
    ({"chat": "yes"}, "chat template is 'yes'; it must be true or false."),
    ({"context": 4}, "context limit is 4; it must lie between 16 and 16777216."),
    ({"heal": None}, "token healing is empty; it must be true or false."),
    ({"top": 11}, "most likely tokens is 11; it must lie between 0 and 10."),
    (
        {"lineup": "kv:cache=../../etc/passwd"},
        "Line 1 of the line-up: KV reuse: Cache is '../../etc/passwd'; choose from fresh, session.",
    ),
    (
        {"stop": "x" * 201},
        "There are 1 stop strings of up to 201 characters; 16 of up to 200 are allowed.",
    ),
    (
        {"stop": "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn\no\np\nq"},
        "There are 17 stop strings of up to 1 characters; 16 of up to 200 are allowed.",
    ),
    ({"lineup": ""}, "No column is chosen: add at least one."),
    ({"lineup": "kv\n" * 13}, "There are 13 columns; a race has 1 to 12: remove some."),
    ({"lineup": "kv\n" * 1334}, "The line-up has 4,002 characters; it must have at most 4,000."),
    (
        {"lineup": "kv\n\nnothing"},
        f"Line 3 of the line-up: There is no column 'nothing'; choose from {COLUMNS}.",
    ),
    ({"lineup": ["kv"]}, "The line-up is a list of 1; it must be text."),
    (
        {"lineup": "kv\ud800"},
        f"Line 1 of the line-up: There is no column 'kv\\ud800'; choose from {COLUMNS}.",
    ),
    (
        {"lineup": "kv@fake"},
        "Line 1 of the line-up: There is no engine 'fake' here; choose from openvino, torch.",
    ),
    (
        {"lineup": "kv@GPU"},
        "Line 1 of the line-up: There is no device 'GPU' here; choose from CPU, AUTO.",
    ),
    (
        {"lineup": "kv:model=x"},
        "Line 1 of the line-up: There is no model 'x' on this page; choose one of built-in, llama, owner/model, or a Hub id such as owner/model.",
    ),
    (
        {"lineup": "kv:model=" + "x" * 999},
        "Line 1 of the line-up: KV reuse: model has 999 characters; it must have at most 200.",
    ),
    ({"engine": "fake"}, "There is no engine 'fake' here; choose from openvino, torch."),
    (
        {"precision": "bf16"},
        "OpenVINO has no precision 'bf16' here; choose from fp32, int8, int4, int4-exact.",
    ),
    ({"model": 1}, "the model is 1; it must be text."),
    ({"model": "9"}, "There is no model '9' on this page; choose one from the list."),
    (
        {"lineup": "speculative:k=17"},
        "Line 1 of the line-up: Speculative: k is 17; it must lie between 1 and 16.",
    ),
    (
        {"lineup": "lookahead:seeded=maybe"},
        "Line 1 of the line-up: Lookahead: Seeded is 'maybe'; it must be true or false.",
    ),
    (
        {"lineup": "speculative:k=0"},
        "Line 1 of the line-up: Speculative: k is 0; it must lie between 1 and 16.",
    ),
    (
        {"lineup": "grammar:grammar=own"},
        "The grammar is empty: write one or choose a ready-made one.",
    ),
    (
        {"lineup": "kv:grammar=own", "grammar__kind": "exe"},
        "The grammar kind is 'exe'; choose from lark, json_schema, regex, gbnf.",
    ),
    (
        {"lineup": "kv:grammar=own", "grammar__text": ["a"]},
        "The grammar is a list of 1; it must be text.",
    ),
]

#: What an operator allows less of, a form that asks for more, and the sentence.
LIMITED: list[tuple[dict[str, int], dict[str, Any], str]] = [
    (
        {"prompt_characters": 5},
        {"prompt": "Hello."},
        "The prompt of 6 characters is too long: 5 are allowed.",
    ),
    ({"tokens": 64}, {"max_new_tokens": 65}, "max new tokens is 65; it must lie between 1 and 64."),
    ({"columns": 4}, {}, "There are 5 columns; a race has 1 to 4: remove some."),
    (
        {"models": 1},
        {"lineup": "kv\nkv@int8"},
        "The columns run on 2 models, which differ in name, engine, precision or device; a race may have 1 here: remove some.",
    ),
    (
        {"hub_downloads": 0},
        {"model": "hub", "model__hub": "a/b"},
        "There is no model 'hub' on this page; choose one from the list.",
    ),
    (
        {"hub_downloads": 0},
        {"lineup": "kv:model=a/b"},
        "Line 1 of the line-up: There is no model 'a/b' on this page; choose one of built-in, llama, owner/model.",
    ),
    (
        {"hub_downloads": 0},
        {"lineup": "speculative:draft=a/b"},
        "Line 1 of the line-up: There is no model 'a/b' on this page; choose one of built-in, llama, owner/model.",
    ),
]

#: What the line-up's editor cannot do, and the sentence.
ACTIONS: list[tuple[Any, str]] = [
    ("add", "The action is 'add'; it must be an object."),
    ({}, "The action is unknown."),
    (
        {"op": "add", "strategy": "nothing"},
        f"There is no column 'nothing'; choose from {COLUMNS}.",
    ),
    ({"op": "add", "strategy": {"kv": 1}}, "'add.strategy' is a dict of 1; it must be text."),
    (
        {"op": "add", "strategy": "kv\nkv"},
        f"There is no column 'kv\\nkv'; choose from {COLUMNS}.",
    ),
    ({"op": "duplicate", "index": 5}, "Column 5 does not exist; the line-up has columns 0 to 4."),
    ({"op": "remove", "index": -1}, "'remove.index' is -1; it must be at least 0."),
    (
        {"op": "set", "index": 2, "setting": "nothing", "value": "1"},
        "Speculative has no setting 'nothing'; it has auto, k, draft, promise, cache, grammar.",
    ),
    (
        {"op": "set", "index": 2, "setting": "k", "value": 10**30},
        "'set.value' is 1000000000000000000000000000000; it must be text.",
    ),
    (
        {"op": "set", "index": 2, "setting": "k", "value": "9" * 201},
        "'set.value' has 201 characters; it must have at most 200.",
    ),
    (
        {"op": "set", "index": 2, "setting": "draft", "value": "a/b,k=2"},
        "'a/b,k=2' contains a comma or a line break, which no setting may contain.",
    ),
    (
        {"op": "set", "index": 2, "setting": "draft", "value": "a/b\nkv"},
        "'a/b\\nkv' contains a comma or a line break, which no setting may contain.",
    ),
    (
        {"op": "set", "index": 2, "setting": "engine", "value": "fake"},
        "There is no engine 'fake' here; choose from openvino, torch.",
    ),
    (
        {"op": "set", "index": 2, "setting": "precision", "value": "CPU"},
        "There is no precision 'CPU' here; choose from fp32, int8, int4, int4-exact, bf16.",
    ),
    (
        {"op": "set", "index": 2, "setting": "device", "value": "int8/../x"},
        "There is no device 'int8/../x' here; choose from CPU, AUTO.",
    ),
    (
        {"op": "set", "index": 2, "setting": "device", "value": "CPU:k=1"},
        "There is no device 'CPU:k=1' here; choose from CPU, AUTO.",
    ),
    ({"op": "preset", "name": "nothing"}, "There is no preset 'nothing'."),
]


@pytest.mark.parametrize(("changes", "sentence"), FORMS)
def test_a_form_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DerbyError) as refused:
        read_race(filled(**changes), MENU)
    assert str(refused.value) == sentence
    assert len(sentence) < 300


@pytest.mark.parametrize(("limits", "changes", "sentence"), LIMITED)
def test_a_form_beyond_the_operators_limits_is_refused(
    limits: dict[str, int], changes: dict[str, Any], sentence: str
) -> None:
    """Any visitor could have any model of the Hub fetched, and race 8,192 tokens in 12 columns."""
    with pytest.raises(DerbyError) as refused:
        read_race(filled(**changes), replace(MENU, limits=Limits(**limits)))
    assert str(refused.value) == sentence
    named = {"model.hub": "a/b"} if "model" in changes else {}
    assert read_race(filled(**changes) | named, MENU)


@pytest.mark.parametrize(("action", "sentence"), ACTIONS)
def test_an_action_of_the_editor_is_refused_and_changes_nothing(action: Any, sentence: str) -> None:
    usual = "\n".join(DEFAULT_COLUMNS)
    state = answer({"text": usual, "action": action, "serial": 3}, MENU)
    assert (state["problem"], state["refused"], state["serial"]) == (sentence, True, 3)
    assert state["text"] == usual
    assert len(state["columns"]) == len(DEFAULT_COLUMNS)


#: What an operator may write for a limit, and how the sentence begins.
LIMITS = {
    "columns": "The limit columns is ''; it must be a whole number.",
    "colums=3": "There is no limit 'colums'; write NAME=VALUE with one of columns, tokens, ",
    "columns=": "The limit columns is ''; it must be a whole number.",
    "columns=-1": "The limit columns is -1; it must lie between 1 and 9007199254740992.",
    "columns=0": "The limit columns is 0; it must lie between 1 and 9007199254740992.",
    "tokens=1e3": "The limit tokens is '1e3'; it must be a whole number.",
    "=3": "There is no limit ''; write NAME=VALUE with one of columns, tokens, ",
    f"columns={'9' * 1_000_000}": "The limit columns is '99999",
}


@pytest.mark.parametrize(("text", "beginning"), LIMITS.items(), ids=range(len(LIMITS)))
def test_a_limit_is_refused(text: str, beginning: str) -> None:
    with pytest.raises(DerbyError) as refused:
        limits_of([text], public=False)
    assert str(refused.value).startswith(beginning)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("text", ["", "nginx", "10.0.0.1:80", "10.0.0.0/33", "*"])
def test_what_is_no_address_of_a_proxy_is_refused(text: str) -> None:
    with pytest.raises(DerbyError) as refused:
        proxies_of(["10.0.0.1", text])
    assert (
        str(refused.value)
        == f"{text!r} is not a proxy's address: give --proxy an address such as 10.0.0.1, or a network such as 10.0.0.0/8."
    )


def test_columns_that_guess_are_refused_where_a_pass_takes_one_token() -> None:
    column, target = default_column("lookup"), ModelSpec("fake-one-token", "fake")
    board = Scoreboard([column])
    Race(Request("x"), (column,), target).run(LoadedModels(), board.add, lambda: False)
    assert (
        board.scores[0].message
        == "Prompt lookup checks guesses, and fake-one-token on fake fp32 (CPU) computes one token at a time here: choose KV reuse, or another model."
    )


ONE = "model.layers.1.mlp.up_proj.weight"

#: What is wrong with a checkpoint, and the sentence; {0} is its folder, {1} the folder's name.
CHECKPOINTS: dict[str, tuple[Damage, str]] = {
    "one missing": (
        with_weights(lambda tensors: tensors.pop(ONE)),
        "Tensors of '{0}' are missing or do not fit its config.json, such as model.layers.1.mlp.up_proj.weight: fetch weights and config.json again.",
    ),
    "a layer missing": (
        stating("config.json", num_hidden_layers=4),
        "Tensors of '{0}' are missing or do not fit its config.json, such as model.layers.3.input_layernorm.weight: fetch weights and config.json again.",
    ),
    "other shapes": (
        stating("config.json", intermediate_size=40),
        "Tensors of '{0}' are missing or do not fit its config.json, such as model.layers.0.mlp.down_proj.weight: fetch weights and config.json again.",
    ),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        "The model in '{1}' comes without a tokenizer: put tokenizer.json from its repository beside its weights.",
    ),
    "config is a list": (
        holding("config.json", "[]"),
        "The config.json of '{0}' is not a JSON object: fetch it again.",
    ),
    "config is cut": (
        holding("config.json", '{"model_type": "ll'),
        "The config.json of '{0}' is not a JSON object: fetch it again.",
    ),
    "config without a type": (
        holding("config.json", "{}"),
        "The config.json of '{0}' cannot be read (ValueError: Unrecognized model in ",
    ),
    "config without layers": (
        stating("config.json", num_hidden_layers=None),
        "The config.json of '{0}' cannot be read (TypeError: ",
    ),
    "end of text by name": (
        stating("generation_config.json", eos_token_id=["</s>"]),
        "The eos_token_id of '{0}' is ['</s>']; it must be a token's number, or a list of them: correct it in generation_config.json or config.json.",
    ),
    "tokenizer of nothing": (
        holding("tokenizer.json", "{}"),
        "The tokenizer of '{1}' cannot be read (KeyError: 'added_tokens'): fetch tokenizer.json and tokenizer_config.json again.",
    ),
    "its own code": (
        stating("config.json", model_type="mystery", auto_map={"AutoConfig": "mystery.Config"}),
        "The model '{0}' needs code from its own repository, which Decode Derby does not run: choose a model of a standard architecture.",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that can be chatted with."""
    return chat_model.make(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("engine", ["torch", "openvino"])
@pytest.mark.parametrize(("damage", "sentence"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_damaged_checkpoint_is_refused(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    sentence: str,
    engine: str,
) -> None:
    """Missing weights were drawn at random, and raced; most of the others were internal errors, and
    some passed on the advice to run the repository's code.
    """
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    damage(folder)
    with pytest.raises(DerbyError) as refused:
        engine_named(engine).open(ModelSpec(str(folder), engine), lambda _: None)
    assert str(refused.value).startswith(sentence.format(folder, folder.name))
    assert len(str(refused.value)) < 400
