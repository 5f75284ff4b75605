"""Snippets in Python: transformers, openvino-genai and vLLM."""

from backend.export.plan import Model, Plan, Snippet, call, code, nothing, python, shell

_TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_BITS = {"int8": "load_in_8bit", "int4": "load_in_4bit"}
_SCHEMES = {"int8": "W8A16", "int4": "W4A16"}


def transformers(plan: Plan) -> Snippet:
    library = "transformers"
    if plan.kind == "lookahead":
        return nothing(library, "python", _no_lookahead(library, plan, "prompt_lookup_num_tokens"))
    if plan.grammar:
        return nothing(
            library,
            "python",
            f"transformers takes no grammar such as {plan.grammar.name!r}: use openvino-genai or "
            "vLLM, or a logits processor of llguidance.",
        )
    models = [plan.model, *([plan.draft] if plan.draft else [])]
    small = any(model.quantised for model in models)
    names = ["AutoModelForCausalLM", "AutoTokenizer", *(["BitsAndBytesConfig"] if small else [])]
    lines = [
        *([] if plan.greedy else ["import torch"]),
        f"from transformers import {', '.join(names)}",
        "",
        f"prompt = {python(plan.request.prompt)}",
        f"tokenizer = AutoTokenizer.from_pretrained({plan.model.name!r})",
        f"model = {_loaded(plan.model)}",
    ]
    if plan.draft:
        lines += [
            f"draft = {_loaded(plan.draft)}",
            "# generate() reads these from the draft, not from its own arguments.",
            f"draft.generation_config.num_assistant_tokens = {plan.k}",
            'draft.generation_config.num_assistant_tokens_schedule = "constant"',
            "draft.generation_config.assistant_confidence_threshold = 0.0",
        ]
    lines += [*_inputs(plan), *_generate(plan)]
    lines += [
        'answer = output[0, inputs["input_ids"].shape[1] :]',
        "print(tokenizer.decode(answer, skip_special_tokens=True))",
    ]
    notes = list(plan.notes)
    if small:
        notes.append("Weights of fewer bits are bitsandbytes' here: pip install bitsandbytes.")
    if plan.reuse:
        notes.append("To reuse earlier texts, pass their past_key_values yourself.")
    return Snippet(library, "python", code(lines), " ".join(notes))


def _loaded(model: Model) -> str:
    how = (
        f"quantization_config=BitsAndBytesConfig({_BITS[model.precision]}=True)"
        if model.quantised
        else f'dtype="{_TORCH[model.precision]}"'
    )
    return f"AutoModelForCausalLM.from_pretrained({model.name!r}, {how})"


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


def openvino_genai(plan: Plan) -> Snippet:
    library = "openvino-genai"
    if plan.kind == "lookahead":
        return nothing(library, "python", _no_lookahead(library, plan, "num_assistant_tokens"))
    if not plan.cache:
        return nothing(library, "python", _always_caches(library))
    if plan.grammar and plan.grammar.kind == "lark":
        return nothing(
            library,
            "python",
            f"openvino-genai takes EBNF as GBNF writes it, not a Lark grammar such as "
            f"{plan.grammar.name!r}: rewrite it, or use vLLM.",
        )
    pipeline = [f'"target-{plan.model.precision}"', repr(plan.device)]
    pipeline.append("scheduler_config=scheduler")
    lines = ["# Once, in a shell:", f"# {_export(plan.model, 'target')}"]
    if plan.draft:
        lines.append(f"# {_export(plan.draft, 'draft')}")
        folder = f'"draft-{plan.draft.precision}"'
        pipeline.append(f"draft_model=genai.draft_model({folder}, {plan.device!r})")
    if plan.kind == "lookup":
        pipeline.append("prompt_lookup=True")
    lines += [
        "import openvino_genai as genai",
        "",
        f"prompt = {python(plan.request.prompt)}",
        "scheduler = genai.SchedulerConfig()",
        f"scheduler.enable_prefix_caching = {plan.reuse}",
        *call("pipeline", "genai.LLMPipeline", pipeline),
        "config = genai.GenerationConfig()",
        *(f"config.{setting}" for setting in _genai_settings(plan)),
        *_genai_grammar(plan),
        "print(pipeline.generate(prompt, config))",
    ]
    return Snippet(library, "python", code(lines), " ".join(plan.notes))


def _export(model: Model, role: str) -> str:
    width = "fp16" if model.precision == "bf16" else model.precision
    return (
        f"optimum-cli export openvino --model {shell(model.name)} "
        f"--task text-generation-with-past --weight-format {width} {role}-{model.precision}"
    )


def _genai_settings(plan: Plan) -> list[str]:
    sampling = plan.request.sampling
    settings = [f"max_new_tokens = {plan.limit}", f"do_sample = {not plan.greedy}"]
    if not plan.greedy:
        settings += [f"temperature = {sampling.temperature}", f"top_p = {sampling.top_p}"]
        settings += [f"rng_seed = {sampling.seed}"]
        settings += [f"top_k = {sampling.top_k}"] if sampling.top_k else []
    if plan.k:
        settings.append(f"num_assistant_tokens = {plan.k}")
    if plan.ngram:
        settings.append(f"max_ngram_size = {plan.ngram}")
    if plan.request.stop:
        settings.append(f"stop_strings = set({list(plan.request.stop)!r})")
    return settings if plan.request.chat else [*settings, "apply_chat_template = False"]


def _genai_grammar(plan: Plan) -> list[str]:
    if not plan.grammar:
        return []
    kind = "grammar" if plan.grammar.kind == "gbnf" else plan.grammar.kind
    return [
        f"grammar = {python(plan.constraint)}",
        f"config.structured_output_config = genai.StructuredOutputConfig({kind}=grammar)",
    ]


def vllm(plan: Plan) -> Snippet:
    library = "vLLM"
    if plan.kind == "lookahead":
        return nothing(library, "python", _no_lookahead(library, plan, "num_speculative_tokens"))
    if not plan.cache:
        return nothing(library, "python", _always_caches(library))
    if plan.imports and plan.grammar:
        return nothing(
            library,
            "python",
            f"The grammar {plan.grammar.name!r} imports other files, which vLLM cannot: copy their "
            "rules into it.",
        )
    arguments = [f"model={_compressed(plan.model, 'target')}"]
    if not plan.model.quantised:
        arguments.append(f'dtype="{_TORCH[plan.model.precision]}"')
    arguments.append(f"enable_prefix_caching={plan.reuse}")
    if plan.draft or plan.kind == "lookup":
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
        *call("sampling", "SamplingParams", _vllm_sampling(plan)),
        f"output = llm.{ask}({prompt}, sampling)",
        "print(output[0].outputs[0].text)",
    ]
    notes = list(plan.notes)
    for model in filter(None, (plan.model, plan.draft)):
        if model.quantised:
            folder = "draft" if model is plan.draft else "target"
            notes.append(
                f"Make the folder {folder}-{model.precision} first: a copy of {model.name!r} that "
                f"llm-compressor quantises with the scheme {_SCHEMES[model.precision]}."
            )
    return Snippet(library, "python", code(lines), " ".join(notes))


def _compressed(model: Model, role: str) -> str:
    return repr(f"./{role}-{model.precision}" if model.quantised else model.name)


def _speculation(plan: Plan) -> str:
    if plan.draft:
        draft = _compressed(plan.draft, "draft")
        return f'{{"method": "draft_model", "model": {draft}, "num_speculative_tokens": {plan.k}}}'
    return (
        f'{{"method": "ngram", "num_speculative_tokens": {plan.k}, '
        f'"prompt_lookup_min": 1, "prompt_lookup_max": {plan.ngram}}}'
    )


def _vllm_sampling(plan: Plan) -> list[str]:
    sampling = plan.request.sampling
    arguments = [f"max_tokens={plan.limit}"]
    if plan.greedy:
        arguments.append("temperature=0.0")
    else:
        arguments += [f"temperature={sampling.temperature}", f"top_k={sampling.top_k}"]
        arguments += [f"top_p={sampling.top_p}", f"seed={sampling.seed}"]
    if plan.request.stop:
        arguments.append(f"stop={list(plan.request.stop)!r}")
    if plan.grammar:
        kind = {"json_schema": "json", "regex": "regex"}.get(plan.grammar.kind, "grammar")
        arguments.append(f"structured_outputs=StructuredOutputsParams({kind}=grammar)")
    return arguments


def _no_lookahead(library: str, plan: Plan, setting: str) -> str:
    return (
        f"{library} has no lookahead ({plan.shape}): use its prompt lookup with {setting}={plan.k}."
    )


def _always_caches(library: str) -> str:
    return f"{library} cannot write a text without its cache: use KV reuse."
