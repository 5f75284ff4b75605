"""transformers: generate() with its own assisted generation."""

from collections.abc import Iterator
from typing import get_args

from backend.export.plan import TORCH_DTYPES, Library, Model, Plan, call, python
from backend.grammar.sources import Kind

_BITS = {"int8": "load_in_8bit", "int4": "load_in_4bit"}


_NO_GRAMMAR = (
    "transformers takes no grammar such as {}: use openvino-genai or vLLM, or a logits processor "
    "of llguidance."
)


def _small(plan: Plan) -> bool:
    return any(model.quantised for model in (plan.model, plan.draft) if model)


def _lines(plan: Plan) -> list[str]:
    small = ["BitsAndBytesConfig"] if _small(plan) else []
    names = ["AutoModelForCausalLM", "AutoTokenizer", *small]
    lines = [
        *([] if plan.greedy else ["import torch"]),
        f"from transformers import {', '.join(names)}",
        "",
        f"prompt = {python(plan.request.prompt)}",
        f"tokenizer = AutoTokenizer.from_pretrained({plan.model.name!r})",
        f"model = {_loaded(plan.model, plan.placed)}",
    ]
    if plan.draft:
        lines += [
            f"draft = {_loaded(plan.draft, plan.placed)}",
            "# generate() reads these from the draft, not from its own arguments.",
            f"draft.generation_config.num_assistant_tokens = {plan.k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
        ]
    lines += [*_inputs(plan), *_generate(plan)]
    return [
        *lines,
        'answer = output[0, inputs["input_ids"].shape[1] :]',
        "print(tokenizer.decode(answer, skip_special_tokens=True))",
    ]


def _notes(plan: Plan) -> Iterator[str]:
    if _small(plan):
        yield "This code quantises with bitsandbytes: pip install bitsandbytes."
    if plan.reuse:
        yield "To reuse earlier texts, pass their past_key_values yourself."


def _loaded(model: Model, device: str) -> str:
    how = (
        f"quantization_config=BitsAndBytesConfig({_BITS[model.precision]}=True)"
        if model.quantised
        else f'dtype="{TORCH_DTYPES[model.precision]}"'
    )
    where = f", device_map={device!r}" if device else ""
    return f"AutoModelForCausalLM.from_pretrained({model.name!r}, {how}{where})"


def _inputs(plan: Plan) -> list[str]:
    if not plan.request.chat:
        return ['inputs = tokenizer(prompt, return_tensors="pt").to(model.device)']
    arguments = [
        '[{"role": "user", "content": prompt}]',
        "add_generation_prompt=True",
        "return_dict=True",
        'return_tensors="pt"',
    ]
    lines = call("inputs", "tokenizer.apply_chat_template", arguments)
    return [*lines[:-1], ").to(model.device)"]


def _generate(plan: Plan) -> list[str]:
    sampling = plan.request.sampling
    arguments = ["**inputs", f"max_new_tokens={plan.limit}", f"use_cache={plan.cache}"]
    arguments.append("repetition_penalty=1.0")  # the model's own settings may say otherwise
    if plan.greedy:
        arguments.append("do_sample=False")
    else:
        # Whole numbers are refused as temperatures.
        arguments += ["do_sample=True", f"temperature={float(sampling.temperature)}"]
        arguments += [f"top_k={sampling.top_k}", f"top_p={float(sampling.top_p)}"]
    if plan.draft:
        arguments.append("assistant_model=draft")
    if plan.kind == "lookup":
        arguments.append(f"prompt_lookup_num_tokens={plan.k}")
        arguments.append(f"max_matching_ngram_size={plan.ngram}")
    if plan.request.stop:
        arguments += [f"stop_strings={list(plan.request.stop)!r}", "tokenizer=tokenizer"]
    seed = [] if plan.greedy else [f"torch.manual_seed({sampling.seed})"]
    return [*seed, *call("output", "model.generate", arguments)]


TRANSFORMERS = Library(
    "transformers",
    "python",
    "prompt_lookup_num_tokens=",
    _lines,
    _notes,
    dict.fromkeys(get_args(Kind), _NO_GRAMMAR),
    caches=False,
)
