"""llama.cpp's server: how to start it, and one request."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from backend.errors import DerbyError
from backend.export.plan import Library, Model, Plan, shell
from backend.grammar.sources import GrammarSource

ADDRESS = "http://127.0.0.1:8080"

#: The server draws a seed of its own where it is given this one, its largest.
_RANDOM_SEED = 2**32 - 1
_OUTTYPES = {"bf16": "bf16", "fp16": "f16"}
_REFUSED = {
    "regex": "llama.cpp takes no regular expression such as {}: write it as a GBNF grammar."
}
_QUANTISED = {"int8": "Q8_0", "int4": "Q4_0"}


def _lines(plan: Plan) -> list[str]:
    lines = [*_weights(plan.model, "target"), *_draft(plan)]
    slots = [f"--parallel {plan.pays_up_to}"] if plan.pays_up_to else []
    serve = " \\\n  ".join(
        ["llama-server --model target.gguf --port 8080", *slots, *_speculation(plan)]
    )
    path = "/v1/chat/completions" if plan.request.chat else "/completion"
    return [
        *lines,
        f"{serve} &",
        f"until curl --silent --fail --output /dev/null {ADDRESS}/health; do sleep 1; done",
        f"curl --silent {ADDRESS}{path} --header 'Content-Type: application/json' \\",
        f"  --data-raw {shell(json.dumps(_body(plan)))}",
    ]


def _notes(plan: Plan) -> Iterator[str]:
    if plan.kind == "lookup":
        yield f"Only endings of exactly {plan.ngram} tokens are looked up, no shorter ones."
    if plan.pays_up_to:
        yield f"It speculates at any load: --parallel {plan.pays_up_to} keeps that in bounds."
    if plan.grammar and plan.grammar.kind == "lark":
        yield "A Lark grammar needs a server built with -DLLAMA_LLGUIDANCE=ON."


def _weights(model: Model, role: str) -> list[str]:
    """Commands that leave the model in ROLE.gguf."""
    folder = model.name if model.local else f"./{role}"
    fetch = [] if model.local else [f"hf download {shell(model.name)} --local-dir {folder}"]
    outtype = _OUTTYPES.get(model.precision, "f32")
    convert = f"python convert_hf_to_gguf.py {shell(folder)} --outtype {outtype} --outfile"
    if not model.quantised:
        return [*fetch, f"{convert} {role}.gguf"]
    quantise = f"llama-quantize {role}-f32.gguf {role}.gguf {_QUANTISED[model.precision]}"
    return [*fetch, f"{convert} {role}-f32.gguf", quantise]


def _draft(plan: Plan) -> list[str]:
    """Commands that leave the draft, if there is one, in draft.gguf."""
    draft = plan.draft
    if draft is None:
        return []
    if draft.quantised and plan.model == replace(draft, precision="fp32"):
        return [f"llama-quantize target.gguf draft.gguf {_QUANTISED[draft.precision]}"]
    return _weights(draft, "draft")


def _speculation(plan: Plan) -> list[str]:
    match plan.kind:
        case "draft":
            return [
                "--model-draft draft.gguf --spec-type draft-simple",
                f"--spec-draft-n-max {plan.k} --spec-draft-n-min 0 --spec-draft-p-min 0",
            ]
        case "lookup":
            return [
                f"--spec-type ngram-simple --spec-ngram-simple-size-n {plan.ngram}",
                f"--spec-ngram-simple-size-m {plan.k}",
            ]
        case _:
            return []


def _body(plan: Plan) -> dict[str, Any]:
    request, sampling = plan.request, plan.request.sampling
    body: dict[str, Any] = (
        {"messages": [{"role": "user", "content": request.prompt}], "max_tokens": plan.limit}
        if request.chat
        else {"prompt": request.prompt, "n_predict": plan.limit}
    )
    body |= {"temperature": 0 if plan.greedy else sampling.temperature}
    if not plan.greedy:
        body |= {"top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": 0}
        body |= {"seed": sampling.seed % _RANDOM_SEED}
    if request.stop:
        body["stop"] = list(request.stop)
    return body | {"cache_prompt": plan.reuse} | _constraint(plan)


def _constraint(plan: Plan) -> dict[str, Any]:
    match plan.grammar:
        case None:
            return {}
        case GrammarSource(kind="json_schema"):
            return {"json_schema": _schema(plan.grammar)}
        case GrammarSource(kind="lark"):
            return {"grammar": "%llguidance {}\n" + plan.constraint}
        case _:
            return {"grammar": plan.constraint}


def _schema(grammar: GrammarSource) -> Any:
    try:
        return json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise DerbyError(
            f"The JSON Schema {grammar.name!r} is not JSON ({error}): correct it."
        ) from error


LLAMA_CPP = Library(
    "llama.cpp",
    "bash",
    "--spec-type ngram-simple --spec-ngram-simple-size-m ",
    _lines,
    _notes,
    _REFUSED,
    imports=False,
)
