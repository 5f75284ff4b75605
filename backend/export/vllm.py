"""vLLM: its offline LLM with speculative decoding and structured outputs."""

from collections.abc import Iterable

from backend.export.plan import TORCH_DTYPES, Model, Plan, call, python
from backend.strategies.equivalents import EAGLE_3, SUFFIX_DECODING

_SCHEMES = {"int8": "W8A16", "int4": "W4A16"}


def write(plan: Plan) -> tuple[Iterable[str], Iterable[str]]:
    """Lines of Python, and sentences. Raises DerbyError for what vLLM lacks."""
    plan.require("vLLM", has=(SUFFIX_DECODING, EAGLE_3))
    arguments = [f"model={_name(plan.model, 'target')}"]
    if not plan.model.quantised:
        arguments.append(f'dtype="{TORCH_DTYPES[plan.model.precision]}"')
    arguments.append(f"enable_prefix_caching={plan.reuse}")
    if plan.kind != "plain":
        arguments.append(f"speculative_config={_speculation(plan)}")
    if plan.grammar:
        arguments.append('structured_outputs_config={"backend": "guidance"}')
    ask = "chat" if plan.request.chat else "generate"
    prompt = '[{"role": "user", "content": prompt}]' if plan.request.chat else "prompt"
    lines = [
        "from vllm import LLM, SamplingParams",
        *(["from vllm.sampling_params import StructuredOutputsParams"] if plan.grammar else []),
        "",
        f"prompt = {python(plan.request.prompt)}",
        *([f"grammar = {python(plan.constraint)}"] if plan.grammar else []),
        *call("llm", "LLM", arguments),
        *call("sampling", "SamplingParams", _sampling(plan)),
        f"output = llm.{ask}({prompt}, sampling)",
        "print(output[0].outputs[0].text)",
    ]
    notes = [
        f"Make the folder {_name(model, role)} first: a copy of {model.name!r} that llm-compressor "
        f"quantises with the scheme {_SCHEMES[model.precision]}."
        for model, role in ((plan.model, "target"), (plan.draft, "draft"))
        if model and model.quantised
    ]
    if plan.lacking == SUFFIX_DECODING:
        notes.append("vLLM's suffix decoding needs the package arctic-inference.")
    return lines, notes


def _name(model: Model, role: str) -> str:
    """A literal of the model's name, or of the folder with its quantised copy."""
    return repr(f"./{role}-{model.precision}" if model.quantised else model.name)


def _speculation(plan: Plan) -> str:
    entries = [f'"num_speculative_tokens": {plan.k}']
    if plan.lacking == SUFFIX_DECODING:
        entries = ['"method": "suffix"', *entries]
    elif plan.lacking == EAGLE_3:
        entries = ['"method": "eagle3"', f'"model": {python(plan.trained)}', *entries]
    elif plan.draft:
        draft = _name(plan.draft, "draft")
        entries = ['"method": "draft_model"', f'"model": {draft}', *entries]
    else:
        lookup = ['"prompt_lookup_min": 1', f'"prompt_lookup_max": {plan.ngram}']
        entries = ['"method": "ngram"', *entries, *lookup]
    return f"{{{', '.join(entries)}}}"


def _sampling(plan: Plan) -> list[str]:
    sampling = plan.request.sampling
    arguments = [f"max_tokens={plan.limit}"]
    if plan.greedy:
        arguments.append("temperature=0.0")
    else:
        arguments += [f"temperature={sampling.temperature}", f"top_k={sampling.top_k or -1}"]
        arguments += [f"top_p={sampling.top_p}", f"seed={sampling.seed}"]
    if plan.request.stop:
        arguments.append(f"stop={list(plan.request.stop)!r}")
    if plan.grammar:
        kind = {"json_schema": "json", "regex": "regex"}.get(plan.grammar.kind, "grammar")
        arguments.append(f"structured_outputs=StructuredOutputsParams({kind}=grammar)")
    return arguments
