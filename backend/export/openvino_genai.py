"""Code for openvino-genai, of the arguments that its columns run with."""

from collections.abc import Iterable

from backend.export.code import Variable, assigned, call, published, shell
from backend.libraries.library import NO_DRAFT, Settings
from backend.libraries.openvino_genai import (
    PRECISIONS,
    SCHEDULER,
    generation_arguments,
    pipeline_arguments,
    properties,
)
from backend.types import ModelSpec, Request, template_options


def write(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of Python. Raises DerbyError for what openvino-genai lacks."""
    pipeline = pipeline_arguments(spec.precision, settings)
    config = generation_arguments(request, settings)
    draft, precision = settings["draft"], spec.precision
    if draft in PRECISIONS:
        draft, precision = spec.name, draft
    folder, draft_folder = f"target-{spec.precision}", f"draft-{precision}"
    yield "# Once, in a shell, unless the model is an OpenVINO model already:"
    yield _exported(spec.name, spec.precision, folder)
    if draft != NO_DRAFT:
        yield _exported(draft, precision, draft_folder)
    yield "import openvino_genai as genai\n"
    yield from assigned("prompt", request.prompt)
    if pipeline["ATTENTION_BACKEND"] == "PA":
        yield "scheduler = genai.SchedulerConfig()"
        yield from (f"scheduler.{name} = {value!r}" for name, value in SCHEDULER.items())
        pipeline["scheduler_config"] = Variable("scheduler")
    if draft != NO_DRAFT:
        place = [draft_folder, spec.device]
        yield call("draft = genai.draft_model", place, properties(precision))
        pipeline["draft_model"] = Variable("draft")
    yield call("pipeline = genai.LLMPipeline", [folder, spec.device], pipeline)
    if grammar := config.pop("structured_output_config", None):
        ((kind, text),) = grammar.items()
        yield from assigned("grammar", text)
        output = f"genai.StructuredOutputConfig({kind}=grammar)"
        config["structured_output_config"] = Variable(output)
    if request.chat:
        messages = [{"role": "user", "content": Variable("prompt")}]
        yield f"prompt = genai.ChatHistory({messages!r})"
        if options := template_options(request.thinking):
            yield f"prompt.set_extra_context({options!r})"
    else:
        config["apply_chat_template"] = False
    yield call("config = genai.GenerationConfig", (), config)
    yield "print(pipeline.generate(prompt, config))"


def _exported(name: str, precision: str, folder: str) -> str:
    """A comment with the command that makes a model's folder."""
    task = "--task text-generation-with-past"
    model = shell(published(name))
    return (
        f"# optimum-cli export openvino --model {model} {task} --weight-format {precision} {folder}"
    )
