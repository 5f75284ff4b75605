"""From a column's run to its code: it is the library's column that does the same with the settings
that were in force, it has the arguments that this one runs with, and whatever a visitor names stays
a literal. test_snippets.py executes it.
"""

import ast
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scoreboards import again, board_of, written

from backend.errors import DerbyError
from backend.events import Conditions, Decided, Failed, Started
from backend.export.next_step import next_step
from backend.export.production import LIBRARIES, Snippet, snippets
from backend.grammar.sources import GrammarSource, shipped
from backend.libraries.llamacpp import request_body, server_flags
from backend.libraries.openvino_genai import generation_arguments, pipeline_arguments
from backend.libraries.transformers import generate_arguments, load_arguments
from backend.models.prepared import CACHE
from backend.results.scoreboard import Score, Scoreboard
from backend.strategies.column import Column, default_column, parse_column, settings_of
from backend.strategies.registry import strategies
from backend.strategies.settings import Setting
from backend.types import ModelSpec, Request, Sampling

BUILT_IN, FILE = ModelSpec(), ModelSpec("./a.gguf")
HI, WARM = Request("Hi", 12), Sampling(1, 20, 0.9, 2**63 - 1, 0.1, 1.2)


def ran(*decisions: dict[str, Any]) -> Score:
    """A column whose drafter decided these settings, one after another."""
    score = Score(state="done", steps=30)
    for values in decisions:
        score.add(Decided(0, values, "", []))
    return score


def code_of(
    column: Column | str,
    request: Request = HI,
    target: ModelSpec = BUILT_IN,
    score: Score | None = None,
) -> dict[str, Snippet]:
    """The column's code by library."""
    board = Scoreboard([parse_column(column) if isinstance(column, str) else column])
    board.scores[0] = score or ran()
    return snippets(board, request, target).get(0, {})


@pytest.mark.parametrize(
    ("column", "library", "theirs"),
    [
        ("lookup:k=6", "transformers", "transformers:lookup=6"),
        ("lookup:k=6,ngram=7", "openvino-genai", "openvino_genai:lookup=6,ngram=7"),
        ("speculative:draft=a/b,k=3", "transformers", "transformers:draft=a/b,k=3"),
        ("speculative:draft=int8-exact", "openvino-genai", "openvino_genai:draft=int8-exact,k=8"),
        ("kv@torch/bf16:model=a/b", "transformers", "transformers@bf16/CPU:model=a/b"),
        ("kv@torch/bf16:model=a/b", "openvino-genai", "openvino_genai@fp32/CPU:model=a/b"),
        ("lookup@int4-exact:k=2", "openvino-genai", "openvino_genai@int4-exact/CPU:lookup=2"),
        ("kv:grammar=date", "llama.cpp", "llamacpp:grammar=date"),
        ("llamacpp:spec=ngram-simple,k=5", "transformers", "transformers:lookup=5"),
        ("openvino_genai:draft=a/b,k=3", "transformers", "transformers:draft=a/b,k=3"),
    ],
)
def test_a_column_has_its_like_in_a_library(column: str, library: str, theirs: str) -> None:
    target = FILE if library == "llama.cpp" else BUILT_IN
    ours = code_of(column, HI, target)[library].column
    assert str(ours) == str(parse_column(theirs)) == theirs


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from(["lookup", "speculative"]))
def test_k_is_what_the_run_decided_last(first: int, last: int, name: str) -> None:
    """As if it had been set by hand."""
    chosen, named = code_of(name, score=ran({"k": first}, {"k": last})), code_of(f"{name}:k={last}")
    for library, each in chosen.items():
        assert replace(each, note="") == replace(named[library], note="")


@pytest.mark.parametrize("column", ["lookup", "speculative:draft=int4", "lookahead"])
def test_where_plain_decoding_was_decided_it_is_plain_decoding(column: str) -> None:
    score = ran()
    score.decision = Decided(0, {}, "", [], plain=True)
    plain, codes = code_of("kv"), code_of(column, score=score)
    assert {name: each.code for name, each in codes.items()} == {
        name: each.code for name, each in plain.items()
    }
    assert all(each.note for each in codes.values())


def test_what_differs_from_the_run_is_said() -> None:
    """Other weights, and other draws."""
    warm = Request("Hi", sampling=Sampling(1.0))
    assert not code_of("kv")["transformers"].note
    assert code_of("kv@int8")["transformers"].note
    assert code_of("kv", warm)["transformers"].note
    assert not code_of("kv@int4")["openvino-genai"].note


#: Values for settings of any kind.
VALUES = """1 2 8 true false hybrid trained int4 int8-exact a/b text distribution eagle3 lookahead
ngram-simple ngram-mod draft-mtp none person date json window=7"""


def others(field: Setting) -> list[Any]:
    """Values that a setting may have beside its usual one."""
    values: list[Any] = []
    for text in VALUES.split():
        with suppress(DerbyError):
            values.append(field.parse(text, field.name))
    return [value for value in values if value != field.default]


@pytest.mark.parametrize("name", [name for name, each in strategies().items() if each.loads])
def test_every_setting_of_a_column_is_in_its_code_or_in_its_note(name: str) -> None:
    """Of two columns that differ, the codes or what is said of them do."""
    usual, library = default_column(name), strategies()[name].library
    for target in (BUILT_IN, FILE):
        plain = code_of(usual, target=target)
        for field in settings_of(strategies()[name]).values():
            assert others(field)
            for value in others(field):
                column = usual.with_settings({field.name: value})
                for title, each in code_of(column, target=target).items():
                    runs_it = LIBRARIES[title].raced and LIBRARIES[title].library is library
                    assert runs_it or each != plain.get(title), (str(column), title)


TOKENS = [[n % 20] for n in range(60)]


@pytest.mark.parametrize(
    ("columns", "costs", "answer", "column"),
    [
        # An own column won: the library's column that does the same can be raced.
        ("kv lookup speculative", (0.1, 0.05, 0.08), "The fastest", "openvino_genai:lookup="),
        # What was raced and was faster is to be used, not what was faster still and is no code.
        ("kv openvino_genai:lookup=4 lookup", (0.1, 0.07, 0.05), "Use it: openvino-genai with", ""),
        ("kv openvino_genai lookup:k=4", (0.1, 0.05, 0.2), "openvino-genai; nothing was", ""),
        ("kv lookup speculative:draft=bf16", (0.1, 0.12, 0.05), "", ""),  # no library has such code
        ("kv lookup", (0.1, 0.2), "Nothing was measurably faster", "openvino_genai"),
        ("openvino_genai lookup", (0.1, 0.2), "nothing was measurably faster", ""),
    ],
)
def test_under_a_race_stands_the_code_that_was_raced_or_the_race_of_it(
    columns: str, costs: Sequence[float], answer: str, column: str
) -> None:
    events = [e for i, cost in enumerate(costs) for e in written(i, TOKENS, cost)]
    at = [i for i, name in enumerate(columns.split()) if "genai" in name]
    events += [again(i, TOKENS, costs[i]) for i in at]
    board = board_of(columns, *events, Conditions(0.0))
    every = snippets(board, HI, BUILT_IN)
    step = next_step(board, every)
    assert answer in step.sentence
    assert step.column.startswith(column)
    assert bool(step.code) == ("Use it" in step.sentence)
    if step.code:
        assert step.code in [each.code for each in every[at[0]].values()]
    for conditions, sentence in ((Conditions(0.9), "Run it again"), (None, "")):
        other = board_of(columns, *events, *filter(None, [conditions]))
        step = next_step(other, every)
        assert sentence in step.sentence
        assert (step.code, step.column) == ("", "")


def test_code_knows_its_column_in_the_race() -> None:
    """A column that chose its sizes by itself gets those that were in it."""
    columns = "kv lookup:k=4 transformers:lookup=4 transformers@bf16 lookup lookup:ngram=5"
    events = [event for i in range(6) for event in written(i, TOKENS, 0.1)]
    every = snippets(board_of(columns, *events, Conditions(0.0)), HI, BUILT_IN)
    raced = [every[i]["transformers"].raced for i in range(6)]
    assert [row and row.column for row in raced] == [None, 2, 2, 3, 2, None]
    assert every[1]["vLLM"].raced is None
    assert next(iter(every[1])) == "transformers", "which was raced so"


def test_only_what_has_code_is_offered() -> None:
    board = board_of("kv speculative:draft=bf16 lookup @http://a", Failed(2, "No."))
    every = snippets(board, HI, BUILT_IN)
    assert every.keys() == {0}, "no library can, it failed, and it is a server's"
    assert next(iter(every[0])) == "openvino-genai", "it is like the race's engine"
    assert not snippets(board, Request('{{gen "name"}}'), BUILT_IN)


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


def shape(code: str) -> str:
    """A program without the text of its strings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def strings(code: str) -> list[str]:
    values = (node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
    return [value for value in values if isinstance(value, str)]


def keywords(code: str, function: str) -> dict[str, Any]:
    """The named arguments of a function's first call, those that are no literals left out."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    first = next(call for call in calls if ast.unparse(call.func) == function)
    read: dict[str, Any] = {}
    for word in first.keywords:
        try:
            read[str(word.arg)] = ast.literal_eval(word.value)
        except ValueError:
            continue
    return read


@given(columns, requests, names)
@example(parse_column("speculative:draft=int4"), Request("x"), "./~?~")
@settings(max_examples=150, deadline=None)
def test_untrusted_text_stays_a_literal_in_python(
    column: Column, request: Request, name: str
) -> None:
    codes = code_of(column, request, ModelSpec(name))
    tame = replace(request, prompt="x", stop=("x", "y")[: len(request.stop)])
    same = code_of(column, tame, ModelSpec("./x"))
    for library, each in codes.items():
        if library != "llama.cpp":
            assert shape(each.code) == shape(same[library].code)
            assert request.prompt in strings(each.code)
            assert set(request.stop) <= set(strings(each.code))
            assert name in strings(each.code) or library == "openvino-genai"
            assert all(line.isprintable() for line in each.code.split("\n"))


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
    if not (codes := code_of(column, request, ModelSpec(name))):
        return
    code = codes["llama.cpp"].code
    assert all(line.isprintable() for line in code.split("\n"))
    done = subprocess.run(
        [BASH, "-c", f"{RECORDING}\n{code}\nwait"], capture_output=True, check=True
    )
    assert not done.stderr
    ran = [call.split("\0") for call in done.stdout.decode().split("\0\0") if call]
    assert [call[0] for call in ran] == ["llama-server", "curl"]
    assert ran[0][:3] == ["llama-server", "--model", name]
    body = json.loads(ran[-1][-1])
    prompt = body["messages"][0]["content"] if request.chat else body["prompt"]
    assert prompt == request.prompt
    assert body.get("stop", []) == list(request.stop)


def test_a_hostile_grammar_stays_a_literal() -> None:
    text = 'start: "\'" // """ $(date) \x1b\n'
    codes = code_of(parse_column("kv:grammar=own", GrammarSource("lark", text, "own")))
    assert text in strings(codes["vLLM"].code)
    data = shlex.split(codes["llama.cpp"].code, comments=True)[-1]
    assert json.loads(data)["grammar"].endswith(text)


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
@pytest.mark.parametrize("column", ["kv", "lookup:k=5", "speculative:draft=./model,k=3"])
def test_code_has_the_arguments_that_its_column_runs_with(column: str, sampling: Sampling) -> None:
    request = replace(HI, sampling=sampling, ignore_eos=True)
    codes = code_of(column, request, ModelSpec("a/b"))
    settings = {name: each.column.settings() for name, each in codes.items() if each.column}
    ours, code = settings["transformers"], codes["transformers"].code
    assert keywords(code, "model.generate") == generate_arguments(request, ours, on_gpu=False)
    load = keywords(code, "AutoModelForCausalLM.from_pretrained")
    assert load == load_arguments("fp32", "CPU")
    ours, code = settings["openvino-genai"], codes["openvino-genai"].code
    assert keywords(code, "genai.GenerationConfig") == generation_arguments(request, ours)
    assert keywords(code, "genai.LLMPipeline") == pipeline_arguments("fp32", ours)
    column = column.replace("./model", "./x.gguf")
    server = code_of(column, request, FILE)["llama.cpp"]
    assert server.column is not None
    words = shlex.split(server.code.replace("\\\n", ""))
    flags = server_flags("./a.gguf", request, server.column.settings())
    assert words[1 : 1 + len(flags)] == flags
    body = json.loads(words[-1])
    assert body.items() <= request_body(request, server.column.settings())[1].items()
    assert body.keys() >= {"messages", "max_tokens", "temperature", "seed", "ignore_eos"}


def test_code_ends_and_asks_as_its_column_did() -> None:
    """Whatever the model's own files say."""
    score = ran()
    assert "eos_token_id=model." in code_of("kv", score=score)["transformers"].code
    score.add(Started(0, 5, ends=[1, 2]))
    codes = code_of("kv", score=score)
    code = codes["transformers"].code
    assert keywords(code, "GenerationConfig") == {"eos_token_id": [1, 2], "pad_token_id": 1}
    assert keywords(codes["openvino-genai"].code, "genai.GenerationConfig")["stop_token_ids"] == {
        1,
        2,
    }


@pytest.mark.parametrize("name", shipped())
def test_grammars_are_what_llguidance_reads_inside_servers(name: str) -> None:
    from llguidance import LLMatcher, grammar_from

    codes = code_of(f"kv:grammar={name}")
    code = codes["vLLM"].code
    assert keywords(code, "LLM")["structured_outputs_config"] == {"backend": "guidance"}
    (kind,) = re.findall(r"StructuredOutputsParams\((\w+)=grammar\)", code)
    (text,) = re.findall(r"^grammar = (.+?)^prompt = ", code, re.MULTILINE | re.DOTALL)
    assert not LLMatcher.validate_grammar(grammar_from(kind, ast.literal_eval(text)))
    body = json.loads(shlex.split(codes["llama.cpp"].code, comments=True)[-1])
    if "grammar" in body:
        assert body["grammar"].startswith("%llguidance")  # how the server tells it from GBNF
        assert not LLMatcher.validate_grammar(grammar_from("lark", body["grammar"]))
    else:
        assert body["json_schema"] == json.loads(shipped()[name].text)


GBNF = parse_column("kv:grammar=own", GrammarSource("gbnf", 'root ::= "a"', "own"))


@pytest.mark.parametrize(
    ("column", "target", "lacking"),
    [
        *((name, "built-in", "") for name in ("kv", "lookup", "stateless", "speculative")),
        ("speculative:draft=a/b", "built-in", "llama.cpp"),
        ("lookahead", "built-in", "openvino-genai llama.cpp vLLM"),
        ("speculative:draft=int4", "built-in", "transformers llama.cpp vLLM"),
        ("kv:grammar=person", "built-in", "transformers"),
        ("kv:grammar=json", "built-in", "transformers openvino-genai"),
        ("llamacpp:spec=ngram-mod", "built-in", "openvino-genai transformers vLLM"),
        (GBNF, "built-in", "openvino-genai transformers vLLM"),
        ("kv", "a/b:Q4.gguf", "openvino-genai transformers vLLM"),
        ("kv", "a/b", "llama.cpp"),
    ],
)
def test_what_a_library_lacks_it_has_no_code_for(
    column: Column | str, target: str, lacking: str
) -> None:
    assert {*LIBRARIES} - {*code_of(column, target=ModelSpec(target))} == {*lacking.split()}


CUDA, AUTO = (ModelSpec("a/b", "torch", "bf16", device) for device in ("CUDA", "AUTO"))


@pytest.mark.parametrize(
    ("column", "target", "library", "text"),
    [
        ("kv", CUDA, "transformers", "dtype='bfloat16',\n    device_map='cuda'"),
        ("kv", AUTO, "transformers", "device_map='auto'"),
        ("kv@GPU", BUILT_IN, "openvino-genai", "'GPU'"),
        ("kv@int8:model=a/b", BUILT_IN, "openvino-genai", "--model a/b"),
        ("kv@int8:model=a/b", BUILT_IN, "openvino-genai", "--weight-format int8 target-int8"),
        ("kv", BUILT_IN, "transformers", "expanduser('~/cache/built-in')"),
        ("kv", BUILT_IN, "openvino-genai", "expanduser('~/cache/openvino-genai-fp32-"),
        ("kv", BUILT_IN, "llama.cpp", "--model SmolLM2-135M-Instruct.Q4_1.gguf \\"),
        ("kv", ModelSpec("~/my model"), "transformers", "expanduser('~/my model')"),
        ("kv", ModelSpec("~/my model"), "openvino-genai", "--model ~/'my model'"),
        ("kv", ModelSpec("./my file.gguf"), "llama.cpp", "--model './my file.gguf' \\"),
        ("kv", ModelSpec("a/b:Q4.gguf"), "llama.cpp", "hf download a/b Q4.gguf --local-dir target"),
        ("kv", ModelSpec("a/b:Q4.gguf"), "llama.cpp", "--model target/Q4.gguf \\"),
        ("kv", ModelSpec("a/b:Q4_K_M"), "llama.cpp", "--hf-repo a/b:Q4_K_M \\"),
        ("llamacpp:draft=a/d:Q8_0", FILE, "llama.cpp", "--hf-repo-draft a/d:Q8_0 \\"),
    ],
)
def test_models_and_places_stand_in_the_code(
    column: str, target: ModelSpec, library: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, "~/cache")
    code = code_of(column, target=target)[library].code
    assert text in code
    assert str(Path.home()) not in code, "whose that is concerns no guest"
