"""vLLM: its offline LLM with speculative decoding and structured outputs."""

from collections.abc import Iterator

from backend.export.plan import TORCH_DTYPES, Library, Model, Plan, call, python, sampled
from backend.strategies.equivalents import EAGLE_3, SUFFIX_DECODING

_SCHEMES = {"int8": "W8A16", "int4": "W4A16"}


def _lines(plan: Plan) -> list[str]:
    arguments = [f"model={compressed(plan.model, 'target')}"]
    if not plan.model.quantised:
        arguments.append(f'dtype="{TORCH_DTYPES[plan.model.precision]}"')
    arguments.append(f"enable_prefix_caching={plan.reuse}")
    if plan.draft or plan.kind == "lookup":
        arguments.append(f"speculative_config={_speculation(plan)}")
    if plan.grammar:
        arguments.append('structured_outputs_config={"backend": "guidance"}')
    ask = "chat" if plan.request.chat else "generate"
    prompt = '[{"role": "user", "content": prompt}]' if plan.request.chat else "prompt"
    return [
        "from vllm import LLM, SamplingParams",
        *(["from vllm.sampling_params import StructuredOutputsParams"] if plan.grammar else []),
        "",
        f"prompt = {python(plan.request.prompt)}",
        *([f"grammar = {python(plan.constraint)}"] if plan.grammar else []),
        *call("llm", "LLM", arguments),
        *call("sampling", "SamplingParams", _vllm_sampling(plan)),
        f"output = llm.{ask}({prompt}, sampling)",
        "print(output[0].outputs[0].text)",
    ]


def _notes(plan: Plan) -> Iterator[str]:
    if plan.schedule:
        yield (
            "num_speculative_tokens_per_batch_size (vLLM pull request 32374) is predicted for "
            "this race's machine: measure it on yours."
        )
    if plan.lacking == SUFFIX_DECODING:
        yield "vLLM's suffix decoding needs the package arctic-inference."
    yield from quantising(plan)


def quantising(plan: Plan) -> Iterator[str]:
    """What is to be made before of each model in weights of fewer bits."""
    for model in filter(None, (plan.model, plan.draft)):
        if model.quantised:
            folder = "draft" if model is plan.draft else "target"
            yield (
                f"Make the folder {folder}-{model.precision} first: a copy of {model.name!r} that "
                f"llm-compressor quantises with the scheme {_SCHEMES[model.precision]}."
            )


def compressed(model: Model, role: str) -> str:
    """A literal of the model's name, or of the folder that `quantising` names."""
    return repr(f"./{role}-{model.precision}" if model.quantised else model.name)


def _speculation(plan: Plan) -> str:
    entries = [f'"num_speculative_tokens": {plan.k}']
    if plan.schedule:
        # vLLM keeps the last range's number beyond the largest (its pull request 32374).
        ranges = [list(each) for each in plan.schedule]
        entries.append(f'"num_speculative_tokens_per_batch_size": {ranges}')
    if plan.lacking == SUFFIX_DECODING:
        entries = ['"method": "suffix"', *entries]
    elif plan.lacking == EAGLE_3:
        entries = ['"method": "eagle3"', f'"model": {python(plan.trained)}', *entries]
    elif plan.draft:
        draft = compressed(plan.draft, "draft")
        entries = ['"method": "draft_model"', f'"model": {draft}', *entries]
    else:
        lookup = ['"prompt_lookup_min": 1', f'"prompt_lookup_max": {plan.ngram}']
        entries = ['"method": "ngram"', *entries, *lookup]
    return f"{{{', '.join(entries)}}}"


def _vllm_sampling(plan: Plan) -> list[str]:
    arguments = sampled(plan, "max_tokens")
    if not plan.greedy:
        arguments.append(f"seed={plan.request.sampling.seed}")
    if plan.grammar:
        kind = {"json_schema": "json", "regex": "regex"}.get(plan.grammar.kind, "grammar")
        arguments.append(f"structured_outputs=StructuredOutputsParams({kind}=grammar)")
    return arguments


VLLM = Library(
    "vLLM",
    "python",
    "num_speculative_tokens=",
    _lines,
    _notes,
    imports=False,
    has=frozenset({SUFFIX_DECODING, EAGLE_3}),
)
