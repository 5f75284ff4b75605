"""transformers' own decoding: generate(), plain, with prompt lookup, or with an assistant model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.decoding.sampling import COLDEST
from backend.engines.declaration import EngineDeclaration, Say
from backend.engines.torch.declaration import TORCH
from backend.libraries.library import Emit, Library, Part, Settings
from backend.machine import threads
from backend.models.files import ModelFiles, model_files
from backend.text import HfTokenizer, prompt_tokens
from backend.types import ModelSpec, Request

#: torch's names of the precisions.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

#: A setting that names no draft.
NO_DRAFT = "none"

#: The settings of the answer that warms up.
WARM_UP: Settings = {"lookup": 0, "draft": NO_DRAFT, "k": 1}

#: Longest ending that prompt lookup looks up, unless it is set.
NGRAM = 3


def load_arguments(precision: str, device: str) -> dict[str, Any]:
    """Keyword arguments of AutoModelForCausalLM.from_pretrained."""
    on = {} if device == "CPU" else {"device_map": device.lower()}
    return {"dtype": DTYPES[precision], **on}


def draft_arguments(settings: Settings) -> dict[str, Any]:
    """Attributes of the draft's generation_config: generate() reads them there alone."""
    return {
        "num_assistant_tokens": settings["k"],
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


def generate_arguments(request: Request, settings: Settings, device: str) -> dict[str, Any]:
    """Keyword arguments of generate(), but for the inputs, the models and the tokenizer. All that
    the model's own generation_config may state is stated.
    """
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "repetition_penalty": 1.0,
        "do_sample": sampling.temperature >= COLDEST,
    }
    if arguments["do_sample"]:
        arguments |= {
            "temperature": float(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": float(sampling.top_p),
        }
    if request.stop:
        arguments["stop_strings"] = list(request.stop)
    if settings["lookup"]:
        arguments["prompt_lookup_num_tokens"] = settings["lookup"]
        arguments["max_matching_ngram_size"] = NGRAM
    elif settings["draft"] == NO_DRAFT and device != "CPU":
        arguments["cache_implementation"] = "static"  # of which generate() compiles the passes
    return arguments


class TransformersModel:
    """A model in evaluation mode, and the drafts that its columns named so far."""

    def __init__(self, spec: ModelSpec, files: ModelFiles) -> None:
        self.spec, self.max_context = spec, files.max_context
        self.tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
        self.model = _load(files.folder, spec)
        self.weight_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self._drafts: dict[str, tuple[Any, Any]] = {}

    def warm_up(self) -> Iterator[None]:
        """A short answer imports and allocates what the first one needs."""
        yield self.answer(Request("a", 2, chat=False), WARM_UP, lambda _: None)

    def synchronize(self) -> None:
        if self.spec.device != "CPU":
            import torch

            torch.cuda.synchronize(self.model.device)

    def stop(self) -> None: ...

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """See LibraryModel. The streamer is given the prompt first, and then each round's tokens,
        in the thread that generates.
        """
        import torch
        from transformers.generation.streamers import BaseStreamer

        class Streamer(BaseStreamer):
            def __init__(self) -> None:
                self.prompt = True

            def put(self, value: torch.Tensor) -> None:
                if not self.prompt:
                    tokens = tuple(value.flatten().tolist())
                    emit(Part(tokens, accepted=len(tokens) - 1))
                self.prompt = False

            def end(self) -> None: ...

        torch.set_num_threads(threads())  # of this thread
        torch.manual_seed(request.sampling.seed % 2**63)
        arguments = generate_arguments(request, settings, self.spec.device)
        if request.stop:
            arguments["tokenizer"] = self.tokenizer.fast
        if settings["draft"] != NO_DRAFT:
            arguments |= self._assistant(settings)
        prompt = prompt_tokens(self.tokenizer, request)
        ids = torch.tensor([prompt], device=self.model.device)
        self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), streamer=Streamer(), **arguments
        )

    def _assistant(self, settings: Settings) -> dict[str, Any]:
        """Arguments that name the draft; one with another vocabulary needs both tokenizers."""
        name = settings["draft"]
        if name not in self._drafts:
            files = model_files(name, lambda _: None)
            tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
            self._drafts[name] = _load(files.folder, self.spec), tokenizer
        draft, tokenizer = self._drafts[name]
        draft.generation_config.update(**draft_arguments(settings))
        if tokenizer.vocabulary() == self.tokenizer.vocabulary():
            return {"assistant_model": draft}
        return {
            "assistant_model": draft,
            "tokenizer": self.tokenizer.fast,
            "assistant_tokenizer": tokenizer.fast,
        }


def _load(folder: Path, spec: ModelSpec) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, **load_arguments(spec.precision, spec.device)
    ).eval()


def open_model(spec: ModelSpec, say: Say) -> TransformersModel:
    """Load the model for generate(). Raises DerbyError for one that cannot be had."""
    return TransformersModel(spec, model_files(spec.name, say))


TRANSFORMERS = Library(
    "transformers",
    EngineDeclaration(
        name="transformers",
        title="transformers",
        precisions=TORCH.precisions,
        devices=TORCH.devices,
        device_help=TORCH.device_help,
        open=open_model,
        estimate_bytes=TORCH.estimate_bytes,
    ),
    like="torch",
    takes_turns=True,
)
