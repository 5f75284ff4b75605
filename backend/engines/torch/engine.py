"""Any transformers causal LM, run by PyTorch on the CPU or on CUDA devices."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backend.engines.base import Engine
from backend.engines.cache import Store
from backend.engines.torch.abilities import CAPABILITIES, ONE_TOKEN
from backend.engines.torch.hidden_states import tap_of
from backend.errors import DerbyError, unknown
from backend.machine import threads
from backend.models.checkpoint import loading_error, quantised_as, require_all_weights
from backend.models.files import LONGROPE, ModelFiles, model_files
from backend.text import HfTokenizer, Tokenizer
from backend.types import PREFILL_CHUNK, Layers, ModelSpec

if TYPE_CHECKING:
    from backend.engines.torch.calling import Calling
    from backend.engines.torch.graphs import Capture
    from backend.engines.torch.static import StaticModel

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
#: What weights of a language model are called within a larger checkpoint, old or new, and alone.
ALONE = {
    r"^(?:model\.)?(?:language_model|text_model)\.lm_head\.": "lm_head.",
    r"^(?:model\.)?(?:language_model|text_model)\.(?:model\.)?": "model.",
}

#: How configurations call the number of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class TorchEngine(Engine):
    """A loaded causal LM. One whose cache takes no trees computes one token at a time, over
    transformers' own cache: those with recurrent layers, with ALiBi, and others. Raises DerbyError
    for one that does not compute the same in passes that follow one another.

    `model`: transformers' own, in evaluation mode. On one CUDA device its passes have fixed widths
    and are captured as graphs, if the model allows it. Elsewhere a cache that grows is as fast.
    `capture` has fixed widths on any device.
    """

    # First passes allocate and, on a GPU, choose kernels or are captured.
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
        from backend.engines.torch.self_test import computes_alike, goes_by_masks

        self.spec = spec
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.model = model.eval()
        fix_positions(model)
        self._calling = _calling(model)
        self._tap = tap_of(model)
        self._cuda = sorted(
            {p.device for p in model.parameters() if p.device.type == "cuda"}, key=str
        )

        self._static: StaticModel | None = None
        self.capabilities = replace(CAPABILITIES, max_context=max_context)
        if not (goes_by_masks(model) and computes_alike(self, model)):
            self.capabilities = replace(ONE_TOKEN, max_context=max_context)
            if not computes_alike(self, model):
                raise _unsuitable(model.config)
        self._static = self._fixed_widths(capture)
        if self._static is not None:  # beside the weights, for as long as they are there
            self.weight_bytes += self._static.idle_bytes

    def _fixed_widths(self, capture: "Capture | None") -> "StaticModel | None":
        """The model with passes of fixed widths, which ask the device for no value; None: it has
        none. Which experts compute a row is such a value.
        """
        device = self._calling.device
        if capture is None and device.type != "cuda":
            return None
        config = self.model.config.get_text_config(decoder=True)
        spread = len({parameter.device for parameter in self.model.parameters()}) > 1
        experts = any(getattr(config, name, None) for name in EXPERTS)
        if spread or experts or self.capabilities.one_token:
            return None
        from backend.engines.torch.graphs import capture_for
        from backend.engines.torch.static import StaticModel, layout_of

        layout = layout_of(self.model, self._calling, self._tap)
        if layout is None:
            return None
        capture = capture or capture_for(device)
        return StaticModel(self.model, self._calling, self._tap, layout, capture)

    def store(self) -> Store:
        if self.capabilities.one_token:
            from backend.engines.torch.one_token import OneTokenStore

            return OneTokenStore(self.model, self._calling, self._tap)
        if self._static is not None:
            return self._static.store()
        return self._growing()

    def layer_store(self, layers: Layers) -> Store:
        """See Engine. Captured passes do not show layers, so its cache grows, on CUDA too."""
        return self._growing(layers)

    def _growing(self, layers: Layers = ()) -> Store:
        from backend.engines.torch.growing import GrowingStore

        return GrowingStore(self.model, self._calling, self._tap, layers)

    def synchronize(self) -> None:
        import torch

        for device in self._cuda:
            torch.cuda.synchronize(device)


def open_torch(spec: ModelSpec, say: Callable[[str], None]) -> TorchEngine:
    """Load the model that `spec` names; `say` hears what takes long. Raises DerbyError."""
    files = torch_files(spec, say)
    import torch

    torch.set_num_threads(threads())
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    model = load_model(spec, files, _placement(spec.device))
    engine = TorchEngine(spec, model, tokenizer, files.max_context, files.fingerprint)
    engine.row_bytes = files.row_bytes // (1 if spec.precision == "fp32" else 2)
    if files.capped:
        say(files.capped)
    return engine


def torch_files(spec: ModelSpec, say: Callable[[str], None]) -> ModelFiles:
    """Where the model's files are. Raises DerbyError if it cannot be run from them as asked."""
    _placement(spec.device)
    if spec.precision not in PRECISIONS:
        raise unknown("precision", spec.precision, PRECISIONS)
    files = model_files(spec.name, say)
    if files.ready_made:
        raise DerbyError(f"{spec.name!r} is an OpenVINO model: choose the engine openvino.")
    return files


def load_model(spec: ModelSpec, files: ModelFiles, placement: dict[str, Any]) -> Any:
    """The transformers model, by from_pretrained's arguments `placement`. Raises DerbyError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = files.folder
    # TF32 would cost fp32 its exactness, and with it the equality of lossless columns.
    torch.set_float32_matmul_precision("highest")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        text = text_config(config)
        load: Any = AutoModelForCausalLM.from_pretrained
        model, loaded = load(
            folder,
            config=text,
            key_mapping=None if text is config else ALONE,
            dtype=getattr(torch, PRECISIONS[spec.precision]),
            attn_implementation=_attention(text),
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told below
            **placement,
        )
    except torch.OutOfMemoryError as error:
        raise DerbyError(
            f"{spec} does not fit on the device: choose bf16, a smaller model or the device AUTO."
        ) from error
    except (DerbyError, MemoryError):
        raise
    except Exception as error:  # whatever a configuration or weights of others make it raise
        what = f"The torch engine cannot load {spec.name!r}"
        raise loading_error(spec.name, what, error) from error
    require_all_weights(loaded, spec.name)
    if quantised_as(config.to_dict()) == "mxfp4":
        # transformers leaves what it unpacked in bf16, whatever it was asked for.
        model.to(getattr(torch, PRECISIONS[spec.precision]))
    return model


def text_config(config: Any) -> Any:
    """The configuration of a checkpoint's language model, which may read images or sounds too.
    Raises DerbyError where transformers has no causal language model of it.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config(decoder=True)
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _unsuitable(config)
    if text is not config:  # what is said of the whole holds for its part
        text.tie_word_embeddings = config.tie_word_embeddings
        if (quantised := getattr(config, "quantization_config", None)) is not None:
            text.quantization_config = quantised
    return text


def _unsuitable(config: Any) -> DerbyError:
    return DerbyError(
        f"Models of type {config.model_type!r} cannot be decoded here: choose another causal "
        "language model."
    )


def fix_positions(model: Any) -> None:
    """Have rotary positions keep the factors that they were made with: transformers would ask in
    every pass how far it reaches, and wait for the device to tell.
    """
    for module in model.modules():
        if getattr(module, "rope_type", "") in ("dynamic", LONGROPE):
            module.rope_type = "default"


def _attention(text: Any) -> str:
    """The attention that computes models of this configuration right."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    # transformers' SDPA path silently drops soft-capping of attention logits.
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    # Older architectures (GPT-Neo, GPT-J, CodeGen, Bloom, MPT) have no SDPA path.
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]
    return "sdpa" if kind._supports_sdpa and not capped else "eager"  # noqa: SLF001


def _placement(device: str) -> dict[str, Any]:
    """from_pretrained's arguments that put the weights on `device`. Raises DerbyError."""
    import torch

    present = ["CPU", *(f"CUDA:{i}" for i in range(torch.cuda.device_count())), "AUTO"]
    name = "CUDA:0" if device.upper() == "CUDA" else device.upper()
    if name not in present:
        raise unknown("device", device, present)
    if name == "CPU":
        return {}
    return {"device_map": "auto" if name == "AUTO" else {"": name.lower()}}


def _calling(model: Any) -> "Calling":
    """How to call the model."""
    import torch

    from backend.engines.torch.calling import Calling

    config = model.config.get_text_config(decoder=True)
    layer_types = set(getattr(config, "layer_types", None) or ())
    named = inspect.signature(model.forward).parameters
    window = getattr(config, "sliding_window", None)
    if layer_types and "sliding_attention" not in layer_types:
        window = None
    device = model.get_input_embeddings().weight.device
    return Calling(
        # Offloaded weights sit on "meta" until their turn; accelerate moves the inputs itself.
        device=torch.device("cpu") if device.type == "meta" else device,
        dtype=model.dtype,
        window=window,
        by_layer_type=bool(layer_types),
        positions="position_ids" in named,
        cache="cache_params" if "cache_params" in named else "past_key_values",
    )
