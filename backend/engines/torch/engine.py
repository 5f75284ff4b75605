"""The torch engine: what it says of itself, and any causal LM of transformers on CPU or CUDA.

torch itself is imported when a model is opened.
"""

import inspect
import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.engine import Engine, EngineDeclaration, Say, no_trained_draft
from backend.engines.self_test import (
    PRECISE,
    ROUNDED,
    TOKENS,
    distance,
    in_passes,
    sample,
    self_test,
)
from backend.engines.session import Session
from backend.errors import DerbyError, unknown
from backend.machine import threads
from backend.models.files import (
    ModelFiles,
    loading,
    model_files,
    model_folder,
    require_all_weights,
    weights_in,
)
from backend.tokenizer import HfTokenizer, Tokenizer
from backend.types import PREFILL_CHUNK, Guesses, Layers, ModelSpec

if TYPE_CHECKING:
    from backend.engines.torch.captured import Capture, FixedWidths
    from backend.engines.torch.session import TorchModel

log = logging.getLogger(__name__)

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
#: What weights of a language model are called within a larger checkpoint, old or new, and alone.
ALONE = {
    r"^(?:model\.)?(?:language_model|text_model)\.lm_head\.": "lm_head.",
    r"^(?:model\.)?(?:language_model|text_model)\.(?:model\.)?": "model.",
}


def torch_files(spec: ModelSpec, say: Say) -> ModelFiles:
    """Where the model's files are. Raises DerbyError if it cannot be run from them as asked."""
    placement_on(spec.device)
    if spec.precision not in PRECISIONS:
        raise unknown("precision", spec.precision, PRECISIONS)
    files = model_files(spec.name, say)
    if files.ready_made:
        raise DerbyError(f"{spec.name!r} is an OpenVINO model: choose the engine openvino.")
    return files


def load_model(spec: ModelSpec, files: ModelFiles, placement: dict[str, Any]) -> Any:
    """The transformers model, by from_pretrained's arguments `placement`. Raises DerbyError."""
    import torch
    from transformers import AutoConfig

    folder = files.folder
    # TF32 would cost fp32 its exactness, and with it the equality of lossless columns.
    torch.set_float32_matmul_precision("highest")
    with loading(spec.name, f"The torch engine cannot load {spec.name!r}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        text = text_config(config)
        return pretrained(
            spec,
            folder,
            config=text,
            key_mapping=None if text is config else ALONE,
            dtype=getattr(torch, PRECISIONS[spec.precision]),
            attn_implementation=_attention(text),
            **placement,
        )


def pretrained(spec: ModelSpec, folder: Path, **arguments: Any) -> Any:
    """A model in evaluation mode, by from_pretrained's `arguments`, without code of others. Raises
    DerbyError for one that does not fit on the device or lacks weights, and what transformers does.
    """
    import torch
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, loaded = load(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below
            **arguments,
        )
    except torch.OutOfMemoryError as error:
        raise DerbyError(
            f"{spec} does not fit on the device: choose bf16, a smaller model or the device AUTO."
        ) from error
    require_all_weights(loaded, spec.name)
    return model.eval()


def text_config(config: Any) -> Any:
    """The configuration of a checkpoint's language model, which may read images or sounds too.
    Raises DerbyError where transformers has no causal language model of it.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config(decoder=True)
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise unsuitable(config)
    if text is not config:  # what a configuration states holds for its part
        text.tie_word_embeddings = config.tie_word_embeddings
        if (quantised := getattr(config, "quantization_config", None)) is not None:
            text.quantization_config = quantised
    return text


def unsuitable(config: Any) -> DerbyError:
    return DerbyError(
        f"Models of type {config.model_type!r} cannot be decoded here: choose another causal "
        "language model."
    )


def fix_positions(model: Any) -> None:
    """Have rotary positions keep the factors that they were made with: transformers would ask in
    every pass how far it reaches, and wait for the device to tell.
    """
    for module in model.modules():
        if getattr(module, "rope_type", "") in ("dynamic", "longrope"):
            module.rope_type = "default"


def _attention(text: Any) -> str:
    """The attention that computes models of this configuration right."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    # transformers' SDPA path silently drops soft-capping of attention logits.
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    # Older architectures (GPT-Neo, GPT-J, CodeGen, Bloom, MPT) have no SDPA path.
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]
    return "sdpa" if kind._supports_sdpa and not capped else "eager"  # noqa: SLF001


def placement_on(device: str) -> dict[str, Any]:
    """from_pretrained's arguments that put the weights on `device`. Raises DerbyError."""
    import torch

    present = ["CPU", *(f"CUDA:{i}" for i in range(torch.cuda.device_count())), "AUTO"]
    name = "CUDA:0" if device.upper() == "CUDA" else device.upper()
    if name not in present:
        raise unknown("device", device, present)
    if name == "CPU":
        return {}
    return {"device_map": "auto" if name == "AUTO" else {"": name.lower()}}


#: Layers whose attention goes by masks and positions alone, as configurations call them.
MASKED = {"attention", "full_attention", "sliding_attention", "global"}

#: How configurations call the number of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class TorchEngine(Engine):
    """A loaded causal LM. Raises DerbyError for one that does not compute the same in passes that
    follow one another.

    `model`: transformers' own, in evaluation mode. On one CUDA device its passes have fixed widths
    and are captured as graphs, if the model allows it. `capture` has fixed widths on any device.
    """

    # First passes allocate and, on a GPU, choose kernels.
    slow_at_first = (PREFILL_CHUNK, *range(1, 9))

    def __init__(
        self,
        spec: ModelSpec,
        model: Any,
        tokenizer: Tokenizer,
        max_context: int,
        fingerprint: str = "",
        capture: "Capture | None" = None,
    ) -> None:
        self.spec = spec
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        self.max_context = max_context
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.model = model.eval()
        fix_positions(model)
        self._loaded = torch_model_of(model)
        self._config = model.config.get_text_config(decoder=True)
        self._bound = PRECISE if spec.precision == "fp32" else ROUNDED
        self._fixed: FixedWidths | None = None
        self._cuda = {p.device for p in model.parameters() if p.device.type == "cuda"}
        self.guesses = self._tested()
        if self.guesses == "trees":
            self._fixed = self._fixed_widths(capture)

    def _self_test(self, open_session: Callable[[], Session]) -> Guesses:
        return self_test(open_session, self._config.vocab_size, self._bound, self.open)

    def _tested(self) -> Guesses:
        """What its passes may check. Layers that go by rows' places in the cache, as the local
        ones of GPT-Neo and the chunks of Llama 4, take no tree, which a short text does not show.
        """
        config, guesses = self._config, self._self_test(self.open)
        if guesses == "none":
            self.guesses = "none"
            session, tokens = self.open(), sample(config.vocab_size)
            other = [*sample(config.vocab_size, TOKENS - 4, 1), *tokens[-4:]]
            try:
                at_once = in_passes(session, tokens, [TOKENS])[-4:]
                parts = in_passes(session, tokens, [TOKENS - 4, 1, 1, 1, 1])[-4:]
                behind_others = in_passes(session, other, [TOKENS])[-4:]
            except Exception as error:  # whatever the code of others raises
                raise unsuitable(self.model.config) from error
            if not distance(parts, at_once) <= self._bound * distance(behind_others, at_once):
                raise unsuitable(self.model.config)
        named = getattr(config, "layer_types", None) or getattr(config, "attention_layers", ())
        return "chains" if guesses == "trees" and not set(named) <= MASKED else guesses

    def _fixed_widths(self, capture: "Capture | None") -> "FixedWidths | None":
        """The model with passes of fixed widths, which ask the device for no value; None: it has
        none, or they do not compute what others do. Which experts compute a row is such a value.
        """
        device = self._loaded.device
        if capture is None and device.type != "cuda":
            return None
        spread = len({parameter.device for parameter in self.model.parameters()}) > 1
        if spread or any(getattr(self._config, name, None) for name in EXPERTS):
            return None
        from backend.engines.torch.captured import CapturedSession, capture_for, fixed_widths

        fixed = fixed_widths(self._loaded, capture or capture_for(device))
        if (
            fixed is None
            or self._self_test(partial(CapturedSession, fixed, self.max_context, 0)) == "trees"
        ):
            return fixed
        log.warning("%s: captured passes compute something else, and none run", self.spec)
        return None

    def open(self, rows: int = 0, layers: Layers = ()) -> Session:
        from backend.engines.torch.session import PlainSession, TorchSession

        if self.guesses == "none":
            return PlainSession(self._loaded, self.max_context)
        if not set(layers) <= set(range(self._config.num_hidden_layers)):
            raise no_trained_draft(self.spec)
        if self._fixed is not None:
            from backend.engines.torch.captured import CapturedSession

            return CapturedSession(self._fixed, self.max_context, rows, layers)
        room = rows and rows + PREFILL_CHUNK
        return TorchSession(self._loaded, self.max_context, self.guesses, room, layers)

    def synchronize(self) -> None:
        import torch

        for device in self._cuda:
            torch.cuda.synchronize(device)


def torch_model_of(model: Any) -> "TorchModel":
    """The model and how to call it."""
    import torch

    from backend.engines.torch.session import TorchModel

    config = model.config.get_text_config(decoder=True)
    layer_types = set(getattr(config, "layer_types", None) or ())
    named = inspect.signature(model.forward).parameters
    window = getattr(config, "sliding_window", None) or 0
    if layer_types and "sliding_attention" not in layer_types:
        window = 0
    device = model.get_input_embeddings().weight.device
    return TorchModel(
        model,
        # Offloaded weights sit on "meta" until their turn; accelerate moves the inputs itself.
        torch.device("cpu") if device.type == "meta" else device,
        window,
        by_layer_type=bool(layer_types),
        positions="position_ids" in named,
        cache="cache_params" if "cache_params" in named else "past_key_values",
    )


def open_torch(spec: ModelSpec, say: Say) -> TorchEngine:
    """Load the model that `spec` names; `say` hears what takes long. Raises DerbyError."""
    files = torch_files(spec, say)
    import torch

    torch.set_num_threads(threads())
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    model = load_model(spec, files, placement_on(spec.device))
    engine = TorchEngine(spec, model, tokenizer, files.max_context, files.fingerprint)
    engine.row_bytes = files.row_bytes // (1 if spec.precision == "fp32" else 2)
    return engine


def devices() -> tuple[str, ...]:
    """CUDA first where there is a driver: importing torch to ask would take seconds and memory."""
    cuda = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    return ("CUDA", "CPU", "AUTO") if cuda else ("CPU", "AUTO")


def estimate_bytes(spec: ModelSpec, say: Say) -> int:
    return weights_in(model_folder(spec.name, say)) * (4 if spec.precision == "fp32" else 2)


TORCH = EngineDeclaration(
    name="torch",
    title="PyTorch",
    precisions=tuple(PRECISIONS),
    devices=devices,
    device_help="CPU, CUDA or AUTO",
    open=open_torch,
    estimate_bytes=estimate_bytes,
    exact=("fp32",),
)
