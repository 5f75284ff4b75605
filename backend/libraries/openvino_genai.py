"""openvino-genai's own decoding: LLMPipeline, plain, with prompt lookup, or with a draft model."""

import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.engines.engine import Say
from backend.engines.openvino.core import EXACT, require_device
from backend.engines.openvino.engine import OPENVINO
from backend.engines.openvino.export import CONVERTERS, PEAK, converted
from backend.engines.openvino.weights import compressed
from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import GrammarSource
from backend.libraries.draft import checkpoint_of, genai_draft
from backend.libraries.library import (
    NO_DRAFT,
    Chunk,
    Emit,
    Library,
    Settings,
    StoppedError,
    sampling_arguments,
)
from backend.machine import threads
from backend.models.files import (
    IR,
    ModelFiles,
    loading,
    model_files,
    stored_precision,
    weights_in,
)
from backend.models.prepared import is_prepared, prepared, versions
from backend.tokenizer import HfTokenizer, prompt_tokens, require_same_vocabulary
from backend.types import ModelSpec, Request

#: As the openvino engine's: rounded as those are, or the codes that were published.
PRECISIONS = OPENVINO.precisions

#: Raise it whenever the code below writes something else into a prepared folder.
RECIPE = "openvino-genai v2"

#: Attributes of SchedulerConfig: no prompt is remembered from one answer to the next, and most are
#: read at once.
SCHEDULER: Mapping[str, Any] = {
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 8192,
}

#: Looks itself up, and so warms up passes of several rows too.
WARM_UP = Request("one two " * 24, 16, chat=False, ignore_eos=True)


def properties(precision: str) -> dict[str, str]:
    """Properties of a model at this precision: some are computed exactly, others as is usual."""
    return dict(EXACT) if precision in OPENVINO.exact else {}


def pipeline_arguments(precision: str, settings: Settings) -> dict[str, Any]:
    """Keyword arguments of LLMPipeline, but for the draft and a scheduler_config, made of
    SCHEDULER, which both other backends than SDPA take. Raises DerbyError for prompt lookup beside
    a draft.
    """
    lookup, draft = settings["lookup"], settings["draft"] != NO_DRAFT
    if lookup and draft:
        raise DerbyError("openvino-genai guesses by prompt lookup or by a draft: leave one out.")
    backend = "PA" if lookup or draft else "SDPA"
    looking = {"prompt_lookup": True} if lookup else {}
    return {"ATTENTION_BACKEND": backend, **properties(precision), **looking}


def generation_arguments(request: Request, settings: Settings) -> dict[str, Any]:
    """Keyword arguments of GenerationConfig, but for stop_token_ids; a structured_output_config by
    the arguments of StructuredOutputConfig. Raises DerbyError for a grammar that it lacks.
    """
    arguments = sampling_arguments(request)
    if arguments["do_sample"]:
        arguments["rng_seed"] = request.sampling.seed
    if request.ignore_eos:
        arguments["ignore_eos"] = True
    if request.stop:
        arguments |= {"stop_strings": set(request.stop), "include_stop_str_in_output": True}
    if settings["lookup"]:
        arguments["num_assistant_tokens"] = settings["lookup"]
        arguments["max_ngram_size"] = settings["ngram"]
    elif settings["draft"] != NO_DRAFT:
        arguments["num_assistant_tokens"] = settings["k"]
    grammar: GrammarSource | None = settings["grammar"]
    if grammar is not None:
        if grammar.kind not in ("json_schema", "regex"):
            raise DerbyError(
                f"openvino-genai follows a JSON Schema or a regular expression, and "
                f"{grammar.name!r:.60} is neither: choose another grammar, or another column."
            )
        arguments["structured_output_config"] = {grammar.kind: grammar.text.rstrip("\r\n")}
    return arguments


class OpenVINOGenaiModel:
    """A model's files, and the pipeline of the column that answered last: each kind of pipeline has
    weights of its own.
    """

    def __init__(self, spec: ModelSpec, say: Say) -> None:
        require_device(spec.device)
        files = model_files(spec.name, say)
        self.spec, self.max_context = spec, files.max_context
        self.tokenizer = _tokenizer(files)
        self._folder = model_folder(spec, files, say)
        self.weight_bytes = self._model_bytes = _size(self._folder)
        self._kind: tuple[bool, str] | None = None
        self._pipeline: Any = None
        self._answering = threading.Lock()

    def stop(self) -> None: ...

    def prepare(self, request: Request, settings: Settings) -> None:
        """See LibraryModel. Waits for the end of an answer that was stopped. A grammar that is none
        or too large is refused: the library has no bounds for what it compiles.
        """
        generation_arguments(request, settings)
        if settings["grammar"] is not None:
            check(settings["grammar"])
        kind = bool(settings["lookup"]), settings["draft"]
        with self._answering:
            if self._kind == kind:
                return
            self._kind, self._pipeline, self.weight_bytes = None, None, self._model_bytes
            self._pipeline = self._opened(settings)
            self._kind = kind
        self.answer(WARM_UP, {**settings, "grammar": None}, lambda _: None)

    def _opened(self, settings: Settings) -> Any:
        import openvino_genai as genai

        arguments: dict[str, Any] = pipeline_arguments(self.spec.precision, settings)
        arguments |= self._threads
        if arguments["ATTENTION_BACKEND"] == "PA":
            scheduler = arguments["scheduler_config"] = genai.SchedulerConfig()
            for name, value in SCHEDULER.items():
                setattr(scheduler, name, value)
        if settings["draft"] != NO_DRAFT:
            arguments["draft_model"] = self._draft(settings["draft"])
        with loading(self.spec.name, f"openvino-genai cannot load {self.spec.name!r}"):
            return genai.LLMPipeline(self._folder, self.spec.device, **arguments)

    def _draft(self, name: str) -> Any:
        """The draft that a setting names: a copy of the model in fewer bits, one that was trained
        for it, or another model. Raises DerbyError for one with another vocabulary.
        """
        import openvino_genai as genai

        copy, precision = name in PRECISIONS, self.spec.precision
        if not copy and (checkpoint := checkpoint_of(name, self.spec)):
            folder = genai_draft(checkpoint, self.spec)
        else:
            spec = replace(self.spec, **{"precision" if copy else "name": name})
            files = model_files(spec.name, lambda _: None)
            if files.ready_made and not copy:
                spec = replace(spec, precision=stored_precision(files.folder))
            require_same_vocabulary(self.tokenizer, _tokenizer(files), name)
            folder, precision = model_folder(spec, files, lambda _: None), spec.precision
        self.weight_bytes += _size(folder)
        return genai.draft_model(folder, self.spec.device, **properties(precision), **self._threads)

    @property
    def _threads(self) -> dict[str, int]:
        """By itself OpenVINO counts a container's cores, not what its quota allows of them."""
        return {"INFERENCE_NUM_THREADS": threads()} if self.spec.device == "CPU" else {}

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """See LibraryModel. The streamer is called beside the generation, which goes on."""
        import numpy as np
        import openvino_genai as genai
        from openvino import Tensor

        most = request.max_new_tokens
        k = settings["k"] if settings["draft"] != NO_DRAFT else 0

        class Streamer(genai.StreamerBase):
            written = 0

            def write(self, token: Any) -> Any:
                tokens = (token,) if isinstance(token, int) else tuple(token)
                # A draft guesses k in each round but the prompt's, if there is room for as many.
                drafted = min(k, most - self.written - 1) if self.written else 0
                self.written += len(tokens)
                # Without a guess, several are those that might have begun a stop string.
                accepted = len(tokens) - 1 if k or settings["lookup"] else 0
                try:
                    emit(Chunk(tokens, drafted=drafted, accepted=accepted))
                except StoppedError:
                    return genai.StreamingStatus.CANCEL
                return genai.StreamingStatus.RUNNING

            def end(self) -> None: ...

        arguments = generation_arguments(request, settings)
        if grammar := arguments.pop("structured_output_config", None):
            arguments["structured_output_config"] = genai.StructuredOutputConfig(**grammar)
        if not request.ignore_eos:
            arguments["stop_token_ids"] = set(self.tokenizer.eos_ids)
        config = genai.GenerationConfig(**arguments)
        ids = np.array([prompt_tokens(self.tokenizer, request)], dtype=np.int64)
        with self._answering:
            try:
                self._pipeline.generate(Tensor(ids), config, Streamer())
            except RuntimeError as error:
                why = str(error).strip().rpartition("\n")[2].rpartition(".cc:")[2]
                raise DerbyError(
                    f"openvino-genai refuses this ({why:.200}): choose another column."
                ) from error


def model_folder(spec: ModelSpec, files: ModelFiles, say: Say) -> Path:
    """The folder of a stateful IR and its tokenizers in OpenVINO's form, made if need be; with a
    link to the IR that is ready-made. Raises DerbyError for what cannot be converted.
    """
    if files.ready_made and (stored := stored_precision(files.folder)) != spec.precision:
        raise DerbyError(
            f"{spec.name!r} is a ready-made OpenVINO model whose weights are {stored}: choose "
            f"{stored} instead of {spec.precision!r}."
        )
    name, key = _place(spec.precision, files)
    return prepared(name, key, lambda folder: _make(folder, spec, files, say), say)


def conversion_bytes(spec: ModelSpec, say: Say) -> int:
    """See EngineDeclaration.peak_bytes."""
    files = model_files(spec.name, say)
    made = files.ready_made or is_prepared(*_place(spec.precision, files))
    return 0 if made else round(PEAK * weights_in(files.folder))


def _place(precision: str, files: ModelFiles) -> tuple[str, str]:
    """The name of the prepared folder, and how its content is made."""
    packages = versions(*CONVERTERS, "openvino-tokenizers")
    linked = f" in {files.folder}" if files.ready_made else ""
    key = f"{RECIPE} {precision} of {files.fingerprint}{linked} by {packages}"
    return folder_name(precision, files.fingerprint), key


def folder_name(precision: str, fingerprint: str) -> str:
    """What the prepared folder of a model is called."""
    return f"openvino-genai-{precision}-{fingerprint[:16]}"


def _make(folder: Path, spec: ModelSpec, files: ModelFiles, say: Say) -> None:
    import openvino
    from openvino_tokenizers import convert_tokenizer

    fast = _tokenizer(files).fast
    with loading(spec.name, f"The tokenizer of {spec.name!r} has no form in OpenVINO"):
        pair: Any = convert_tokenizer(fast, with_detokenizer=True)
    for kind, model in zip(("tokenizer", "detokenizer"), pair, strict=True):
        openvino.save_model(model, folder / f"openvino_{kind}.xml")
    # For the number of layers: a trained draft reads three of them.
    shutil.copy(files.folder / "config.json", folder)
    if files.ready_made:
        for file in IR:
            (folder / file).symlink_to(files.folder / file)
        return
    if spec.precision == "fp32":
        say(f"Converting {spec.name} to OpenVINO...")
        model, _ = converted(files, spec.name, folder)
    else:
        exact = model_folder(replace(spec, precision="fp32"), files, say)
        say(f"Compressing {spec.name} to {spec.precision}...")
        model = compressed(openvino.Core().read_model(exact / IR[0]), spec, say)
    openvino.save_model(model, folder / IR[0], compress_to_fp16=False)


def _tokenizer(files: ModelFiles) -> HfTokenizer:
    return HfTokenizer(files.folder, files.eos_ids, files.vocab_size)


def _size(folder: Path) -> int:
    return (folder / IR[1]).stat().st_size


OPENVINO_GENAI = Library(
    "openvino_genai",
    replace(
        OPENVINO,
        name="openvino_genai",
        title="openvino-genai",
        open=OpenVINOGenaiModel,
        peak_bytes=conversion_bytes,
    ),
    like="openvino",
)
