"""transformers: generate() with its own assisted generation."""

from collections.abc import Iterable

from backend.errors import DerbyError
from backend.export.plan import TORCH_DTYPES, Model, Plan, call, python

_BITS = {"int8": "load_in_8bit", "int4": "load_in_4bit"}


def write(plan: Plan) -> tuple[Iterable[str], Iterable[str]]:
    """Lines of Python, and sentences. Raises DerbyError for what transformers lacks."""
    plan.require("transformers")
    if plan.grammar:
        raise DerbyError(
            f"transformers takes no grammar such as {plan.grammar.name!r}: use openvino-genai or "
            "vLLM, or a logits processor of llguidance."
        )
    small = any(model.quantised for model in (plan.model, plan.draft) if model)
    names = ["AutoModelForCausalLM", "AutoTokenizer", *["BitsAndBytesConfig"] * small]
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
    lines += [
        *_inputs(plan),
        *([] if plan.greedy else [f"torch.manual_seed({plan.request.sampling.seed})"]),
        *call("output", "model.generate", _arguments(plan)),
        'answer = output[0, inputs["input_ids"].shape[1] :]',
        "print(tokenizer.decode(answer, skip_special_tokens=True))",
    ]
    notes = ["This code quantises with bitsandbytes: pip install bitsandbytes."] * small
    notes += ["To reuse earlier texts, pass their past_key_values yourself."] * plan.reuse
    return lines, notes


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


def _arguments(plan: Plan) -> list[str]:
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
    return arguments
