"""transformers' own decoding: generate(), plain, with prompt lookup, with an assistant model, or by
the code of a custom_generate folder.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.engines.engine import Say
from backend.engines.torch.engine import PRECISIONS, TORCH, pretrained, torch_files
from backend.errors import DerbyError, either
from backend.libraries.draft import checkpoint_of
from backend.libraries.library import (
    NO_DRAFT,
    TRAINED,
    Chunk,
    Emit,
    Library,
    Serving,
    Settings,
    StoppedError,
    sampling_arguments,
)
from backend.machine import threads
from backend.models.files import ModelFiles, loading, model_folder, path_of
from backend.tokenizer import HfTokenizer, prompt_tokens, require_same_vocabulary
from backend.types import ModelSpec, Request, Sampling

#: No code but transformers' own, nor options for it.
NO_CODE = "none"

#: Where code lies in a folder; our own folder, its strategies, of which two draft, and their sizes.
CODE_FILE = "custom_generate/generate.py"
OWN_CODE = Path(__file__).parents[1] / "export" / "generate"
OWN = ("kv", "lookup", "eagle3", "hybrid", "lookahead")
DRAFTING, LOOKING = ("eagle3", "hybrid"), ("lookup", "hybrid")
SIZES, LARGEST = ("k", "ngram", "window", "level", "guesses"), 64

#: No token's id: with None, prompt lookup fails, and -1 is warned of in every round.
NO_TOKEN = 2**31 - 1

#: What a generation_config.json may say that the request says instead, or that changes nothing.
STATED = sampling_arguments(Request("a", sampling=Sampling(1.0))).keys() | {
    *("max_length", "eos_token_id", "bos_token_id", "pad_token_id", "transformers_version")
}

#: An answer whose text nobody wants.
SHORT = Request("a", 2, chat=False)

#: Rounds after which a GPU's passes are compiled and captured.
WARM_ROUNDS = 4


def load_arguments(precision: str, device: str) -> dict[str, Any]:
    """Keyword arguments of AutoModelForCausalLM.from_pretrained."""
    on = {} if device == "CPU" else {"device_map": device.lower()}
    return {"dtype": PRECISIONS[precision], **on}


def ends_arguments(ends: Sequence[int]) -> dict[str, Any]:
    """Keyword arguments of the GenerationConfig that takes the place of the model's own, so that
    nothing is done but what is stated: a generation_config.json may ask for anything.
    """
    ends = list(ends) or [NO_TOKEN]
    return {"eos_token_id": ends, "pad_token_id": ends[0]}


def draft_arguments(settings: Settings) -> dict[str, Any]:
    """The same of the draft's: generate() reads them there alone."""
    return {
        "num_assistant_tokens": settings["k"],
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


def code_arguments(settings: Settings, folder: str, draft: str) -> dict[str, Any]:
    """Keyword arguments of generate() that have it run other code: that of a folder that the
    settings name, with their options, or our own in `folder`, with the EAGLE-3 checkpoint `draft`.
    Raises DerbyError for a folder without code, and options that ours does not have.
    """
    name, options = settings.get("generate", NO_CODE), dict[str, Any]()
    if name == NO_CODE:
        return {}
    for option in settings["options"].split(";") if settings["options"] != NO_CODE else ():
        key, _, text = option.partition("=")
        try:
            options[key.strip()] = json.loads(text)
        except ValueError:
            options[key.strip()] = text.strip()
    if name not in OWN:
        place = path_of(name)
        if not (place / CODE_FILE).is_file():
            raise DerbyError(f"{name!r:.80} has no {CODE_FILE}: name a folder that has it.")
        return {"custom_generate": str(place), **options}
    for key, value in options.items():
        if key not in SIZES or type(value) is not int or not 1 <= value <= LARGEST:
            raise DerbyError(
                f"{name} has no option {f'{key}={value}'!r:.60}: write {either(SIZES)} with a "
                f"number from 1 to {LARGEST}."
            )
    drafts = {"draft": draft} if name in DRAFTING else {}
    sizes = {"k": settings["k"]} if name in (*DRAFTING, *LOOKING) else {}
    sizes |= {"ngram": settings["ngram"]} if name in LOOKING else {}
    return {"custom_generate": folder, "strategy": name, **drafts, **sizes, **options}


def generate_arguments(request: Request, settings: Settings, *, on_gpu: bool) -> dict[str, Any]:
    """Keyword arguments of generate(), but for the inputs, the models, the tokenizer and other
    code. Raises DerbyError for more than one way to guess, and stop strings beside one.
    """
    lookup, draft = settings["lookup"], settings["draft"] != NO_DRAFT
    code = settings.get("generate", NO_CODE)
    if lookup and (draft or code in OWN):
        raise DerbyError("transformers guesses by prompt lookup or by a draft: leave one out.")
    if request.stop and (draft or code != NO_CODE):
        raise DerbyError(
            "generate() of transformers takes no stop strings beside a draft or other code: leave "
            "one out."
        )
    arguments = sampling_arguments(request)
    if arguments.get("min_p") == 0:
        arguments["min_p"] = None
    if request.ignore_eos:
        arguments["eos_token_id"] = NO_TOKEN
    if request.stop:
        arguments["stop_strings"] = list(request.stop)
    if lookup:
        arguments["prompt_lookup_num_tokens"] = lookup
        arguments["max_matching_ngram_size"] = settings["ngram"]
    elif on_gpu and not draft and code == NO_CODE:
        arguments["cache_implementation"] = "static"  # of which generate() compiles the passes
    return arguments


class TransformersModel:
    """A model in evaluation mode, and the drafts that its columns named so far."""

    def __init__(self, spec: ModelSpec, say: Say) -> None:
        files = torch_files(spec, say)
        self.spec, self.max_context = spec, files.max_context
        self.tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
        self.model = _load(files, spec)
        own = self.model.generation_config
        self.tokenizer.notes += _ignored(own)
        self.model.generation_config = type(own)(**ends_arguments(sorted(self.tokenizer.eos_ids)))
        self._on_gpu = self.model.device.type == "cuda"
        self._drafts: dict[str, Any] = {}
        # A short answer imports and allocates what the first one needs.
        self.answer(SHORT, {"lookup": 0, "draft": NO_DRAFT}, lambda _: None)

    @property
    def weight_bytes(self) -> int:
        models = (self.model, *self._drafts.values())
        return sum(p.numel() * p.element_size() for model in models for p in model.parameters())

    def prepare(self, request: Request, settings: Settings) -> None:
        """Load the draft, and other code. On a GPU, where passes are compiled for a length of
        cache, write the first tokens once. Raises DerbyError for a draft with another vocabulary,
        and for what `code_arguments` refuses.
        """
        name, code = settings["draft"], settings.get("generate", NO_CODE)
        new = name != NO_DRAFT and code not in OWN and name not in self._drafts
        if new:
            spec = replace(self.spec, name=name)
            files = torch_files(spec, lambda _: None)
            tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
            require_same_vocabulary(self.tokenizer, tokenizer, name)
            self._drafts[name] = _load(files, spec)
        if new or code != NO_CODE:  # which is imported, and loads a draft of its own
            self.answer(SHORT, settings, lambda _: None)
        if self._on_gpu:
            rounds = iter(range(WARM_ROUNDS))

            def emit(_: Chunk | Serving) -> None:
                if next(rounds, None) is None:
                    raise StoppedError

            with suppress(StoppedError):
                self.answer(request, settings, emit)

    def stop(self) -> None: ...

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """See LibraryModel. The streamer is given the prompt first, and then each round's tokens,
        in the thread that generates; what it was not given comes at the end.
        """
        import torch
        from transformers.generation.streamers import BaseStreamer

        on_gpu = self._on_gpu
        arguments = generate_arguments(request, settings, on_gpu=on_gpu)
        arguments |= code_arguments(settings, str(OWN_CODE), self._head(settings))
        random = torch.cuda if on_gpu else torch
        prompt = prompt_tokens(self.tokenizer, request)

        class Streamer(BaseStreamer):
            written = 0

            def put(self, value: torch.Tensor) -> None:
                tokens = value.flatten().tolist()
                if self.written or tokens != prompt:
                    self.written += len(tokens)
                    if on_gpu:  # a turn ends when its work is done
                        torch.cuda.synchronize()
                    # Others compute meanwhile, and draw from the same generator.
                    state = random.get_rng_state()
                    with torch.enable_grad():
                        emit(Chunk(tuple(tokens), accepted=len(tokens) - 1))
                    random.set_rng_state(state)

            def end(self) -> None: ...

        torch.set_num_threads(threads())
        torch.manual_seed(request.sampling.seed)
        if request.stop:
            arguments["tokenizer"] = self.tokenizer.fast
        if settings["draft"] in self._drafts and settings.get("generate") not in OWN:
            draft = arguments["assistant_model"] = self._drafts[settings["draft"]]
            draft.generation_config = type(draft.generation_config)(**draft_arguments(settings))
        ids, streamer = torch.tensor([prompt], device=self.model.device), Streamer()
        output = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), streamer=streamer, **arguments
        )
        text, written = getattr(output, "sequences", output)[0].tolist(), streamer.written
        if rest := text[len(prompt) + written :]:
            emit(Chunk(tuple(rest)))

    def _head(self, settings: Settings) -> str:
        """The EAGLE-3 checkpoint that our own code drafts with. Raises DerbyError for none."""
        if settings.get("generate") not in DRAFTING:
            return ""
        name = TRAINED if settings["draft"] == NO_DRAFT else settings["draft"]
        return str(checkpoint_of(name, self.spec) or model_folder(name, lambda _: None))


def _ignored(own: Any) -> tuple[str, ...]:
    """What a model's own GenerationConfig asks for beside what is usual and what requests state."""
    usual = own._get_default_generation_params()  # noqa: SLF001 (it is published nowhere)
    wishes = [
        f"{name}={value!r:.20}"
        for name, value in own.to_diff_dict().items()
        if not (name in STATED or name.startswith("_") or usual.get(name, False) == value)
    ]
    asked = f"{', '.join(wishes):.150}"
    return (f"it leaves out what its generation config asks for ({asked})",) if wishes else ()


def _load(files: ModelFiles, spec: ModelSpec) -> Any:
    """The model in evaluation mode. Raises DerbyError for one that transformers cannot load."""
    with loading(spec.name, f"transformers cannot load {spec.name!r}"):
        return pretrained(spec, files.folder, **load_arguments(spec.precision, spec.device))


TRANSFORMERS = Library(
    "transformers",
    replace(TORCH, name="transformers", title="transformers", open=TransformersModel),
    like="torch",
    takes_turns=True,
)
