"""Code for vLLM, of the same settings. It has no column here."""

from collections.abc import Iterable
from typing import Any

from backend.decoding.sampling import COLDEST
from backend.export.code import Variable, assigned, call, published
from backend.grammar.sources import composed
from backend.libraries.library import NO_DRAFT, Settings
from backend.libraries.transformers import NGRAM, load_arguments
from backend.types import ModelSpec, Request, template_options


def write(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of Python."""
    model: dict[str, Any] = {
        "model": published(spec.name),
        "dtype": load_arguments(spec.precision, spec.device)["dtype"],
    }
    if speculation := _speculation(settings):
        model["speculative_config"] = speculation
    sampling, grammar = _sampling(request), settings["grammar"]
    yield "from vllm import LLM, SamplingParams"
    if grammar:
        model["structured_outputs_config"] = {"backend": "guidance"}
        kind = {"json_schema": "json", "regex": "regex"}.get(grammar.kind, "grammar")
        sampling["structured_outputs"] = Variable(f"StructuredOutputsParams({kind}=grammar)")
        text = composed(grammar.text) if grammar.kind == "lark" else grammar.text.rstrip("\r\n")
        yield "from vllm.sampling_params import StructuredOutputsParams"
        yield from assigned("grammar", text)
    yield from assigned("prompt", request.prompt)
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


def _speculation(settings: Settings) -> dict[str, Any]:
    """The speculative_config; {}: plain decoding."""
    if given := settings["speculative_config"]:
        return given | ({"model": published(given["model"])} if "model" in given else {})
    if k := settings["lookup"]:
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": NGRAM}
        return {"method": "ngram", "num_speculative_tokens": k, **lookup}
    if (draft := settings["draft"]) == NO_DRAFT:
        return {}
    k = settings["k"]
    return {"method": "draft_model", "model": published(draft), "num_speculative_tokens": k}


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
