"""Code for transformers, of the arguments that its columns run with."""

from collections.abc import Iterable

from backend.decoding.sampling import COLDEST
from backend.export.code import Variable, assigned, call, published
from backend.libraries.library import NO_DRAFT, Settings
from backend.libraries.transformers import draft_arguments, generate_arguments, load_arguments
from backend.types import ModelSpec, Request, template_options

LOAD = "AutoModelForCausalLM.from_pretrained"


def write(spec: ModelSpec, request: Request, settings: Settings) -> Iterable[str]:
    """Lines of Python. Raises DerbyError for what transformers lacks."""
    name, loading = published(spec.name), load_arguments(spec.precision, spec.device)
    arguments = generate_arguments(request, settings, on_gpu=spec.device == "CUDA")
    yield "import torch"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
    yield from assigned("prompt", request.prompt)
    yield f"tokenizer = AutoTokenizer.from_pretrained({name!r})"
    yield call(f"model = {LOAD}", [name], loading)
    if settings["draft"] != NO_DRAFT:
        yield call(f"draft = {LOAD}", [published(settings["draft"])], loading)
        yield "# generate() reads these there alone."
        yield call("draft.generation_config.update", (), draft_arguments(settings))
        arguments["assistant_model"] = Variable("draft")
    if request.stop:
        arguments["tokenizer"] = Variable("tokenizer")
    asked = {"return_tensors": "pt"}
    if request.chat:
        messages = [{"role": "user", "content": Variable("prompt")}]
        asked |= {"add_generation_prompt": True, "return_dict": True}
        asked |= template_options(request.thinking)
        yield call("inputs = tokenizer.apply_chat_template", [messages], asked)
    else:
        yield call("inputs = tokenizer", [Variable("prompt")], asked)
    yield "inputs = inputs.to(model.device)"
    if request.sampling.temperature >= COLDEST:
        yield f"torch.manual_seed({request.sampling.seed})"
    yield call("output = model.generate", [Variable("**inputs")], arguments)
    yield 'answer = output[0, inputs["input_ids"].shape[1] :]'
    yield "print(tokenizer.decode(answer, skip_special_tokens=True))"
