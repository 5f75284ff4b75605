"""openvino-genai: LLMPipeline, its prompt lookup and its draft models."""

from collections.abc import Iterable

from backend.errors import DerbyError
from backend.export.plan import Model, Plan, call, python, shell


def write(plan: Plan) -> tuple[Iterable[str], Iterable[str]]:
    """Lines of Python, and no sentences. Raises DerbyError for what openvino-genai lacks."""
    plan.require("openvino-genai")
    if plan.grammar and plan.grammar.kind == "lark":
        raise DerbyError(
            "openvino-genai takes EBNF as GBNF writes it, not a Lark grammar such as "
            f"{plan.grammar.name!r}: rewrite it, or use vLLM."
        )
    pipeline = [f'"target-{plan.model.precision}"', repr(plan.device), "scheduler_config=scheduler"]
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
        *(f"config.{setting}" for setting in _settings(plan)),
    ]
    if plan.grammar:
        lines.append(f"grammar = {python(plan.constraint)}")
        output = f"genai.StructuredOutputConfig({plan.grammar.kind}=grammar)"
        lines.append(f"config.structured_output_config = {output}")
    return [*lines, "print(pipeline.generate(prompt, config))"], []


def _export(model: Model, role: str) -> str:
    width = "fp16" if model.precision == "bf16" else model.precision
    return (
        f"optimum-cli export openvino --model {shell(model.name)} "
        f"--task text-generation-with-past --weight-format {width} {role}-{model.precision}"
    )


def _settings(plan: Plan) -> list[str]:
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
