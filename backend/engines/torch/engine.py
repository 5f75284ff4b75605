"""Any transformers causal LM, run by PyTorch on the CPU or on CUDA devices."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.base import Engine
from backend.engines.cache import Store
from backend.engines.torch.abilities import CAPABILITIES
from backend.engines.torch.hidden_states import tap_of
from backend.errors import DerbyError
from backend.machine import threads
from backend.models.checkpoint import loading_error, quantised_as, require_all_weights
from backend.models.files import LONGROPE, ModelFiles, fix_long_factors, model_files
from backend.text import HfTokenizer, Tokenizer
from backend.types import PREFILL_CHUNK, Layers, ModelSpec

if TYPE_CHECKING:
    from backend.engines.torch.calling import Calling
    from backend.engines.torch.graphs import Capture
    from backend.engines.torch.static import StaticModel

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
#: Layers that see their own stretch of the text, and nothing before it.
CHUNKED = "chunked_attention"

#: Types whose code keeps a state of the text in the model itself.
STATEFUL = {"glm_moe_dsa", "recurrent_gemma"}

#: Types whose code ignores masks (Moshi), or has a cache of its own kind or none.
UNFIT = {"moshi", "openai-gpt", "xlm", "xmod"}

#: Types whose code takes no mask by row, so that they see what every row of a chain sees.
CHAINS_ALONE = {"big_bird", "ctrl", "megatron-bert", "rembert"}

#: Layers that keep nothing but keys and values, as configurations call them. Some read those that
#: an earlier layer keeps (Gemma 3n, Gemma 4): they have none, and go wherever those are rewound to.
REWINDABLE = {"attention", "full_attention", "sliding_attention", CHUNKED}

#: How configurations call the number of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class TorchEngine(Engine):
    """A loaded causal LM. Raises DerbyError for a model whose state cannot be rewound.

    Recurrent layers that we know are computed by passes of ours: see `recurrence`.

    `model`: transformers' own, in evaluation mode. On one CUDA device its passes have fixed widths
    and are captured as graphs, if the model allows it; `why_growing` says why not. Elsewhere a
    cache that grows is as fast. `capture` has fixed widths on any device.
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
        from backend.engines.torch.recurrence.store import recurrent_layers

        self.spec = spec
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        recurrent = bool(recurrent_layers(model))
        trees = _masks_trees(model.config.get_text_config(decoder=True)) and not recurrent
        self.capabilities = replace(
            CAPABILITIES,
            tree=trees,
            max_context=max_context,
            rewinds="last pass" if recurrent else "any row",
        )
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.model = model.eval()
        fix_positions(model)
        if not recurrent:
            _require_fit(model)
        self._calling = _calling(model, recurrent=recurrent)
        self._tap = tap_of(model)
        self._cuda = sorted(
            {p.device for p in model.parameters() if p.device.type == "cuda"}, key=str
        )

        self._static, self.why_growing = self._fixed_widths(capture)

    def _fixed_widths(self, capture: "Capture | None") -> "tuple[StaticModel | None, str]":
        """The model with passes of fixed widths, or why it has none."""
        device = self._calling.device
        if capture is None and device.type != "cuda":
            return None, "only CUDA devices capture passes"
        if self.capabilities.recurrent:
            return None, "it keeps a state of the text"
        why_not = _not_fixed(self.model, trees=self.capabilities.tree)
        if why_not:
            return None, why_not
        from backend.engines.torch.graphs import capture_for
        from backend.engines.torch.static import StaticModel, layout_of

        layout = layout_of(self.model, self._calling, self._tap)
        if layout is None:
            return None, "its layers' caches differ in shape"
        capture = capture or capture_for(device)
        return StaticModel(self.model, self._calling, self._tap, layout, capture), ""

    def fixed_widths(self) -> "StaticModel":
        """The model with passes of fixed widths, wherever it runs. Raises DerbyError if it cannot
        have them.
        """
        if self._static is not None:
            return self._static
        from backend.engines.torch.graphs import capture_for

        made, why_not = self._fixed_widths(capture_for(self._calling.device))
        if made is None:
            raise DerbyError(f"{self.spec} has no passes of fixed widths: {why_not}.")
        return made

    def store(self) -> Store:
        if self._static is not None:
            return self._static.store()
        return self._growing()

    def layer_store(self, layers: Layers) -> Store:
        """See Engine. Captured passes do not show layers, so its cache grows, on CUDA too."""
        return self._growing(layers)

    def _growing(self, layers: Layers = ()) -> Store:
        from backend.engines.torch.growing import GrowingStore
        from backend.engines.torch.recurrence.store import RecurrentStore

        kind = RecurrentStore if self.capabilities.recurrent else GrowingStore
        return kind(self.model, self._calling, self._tap, layers)

    @property
    def on_cuda(self) -> bool:
        """Whether any of its weights lie on a CUDA device."""
        return bool(self._cuda)

    def synchronize(self) -> None:
        import torch

        for device in self._cuda:
            torch.cuda.synchronize(device)


def open_torch(spec: ModelSpec, say: Callable[[str], None]) -> TorchEngine:
    """Load the model that `spec` names; `say` hears what takes long. Raises DerbyError."""
    files = _files(spec, say)
    import torch

    torch.set_num_threads(threads())
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    model = load_model(spec, files, _placement(spec.device))
    engine = TorchEngine(spec, model, tokenizer, files.max_context, files.fingerprint)
    engine.row_bytes = files.row_bytes // (1 if spec.precision == "fp32" else 2)
    if files.factors:
        say(files.factors)
    if engine.on_cuda and engine.why_growing:
        say(f"Passes of {spec} run without CUDA graphs: {engine.why_growing}.")
    return engine


def _files(spec: ModelSpec, say: Callable[[str], None]) -> ModelFiles:
    """Where the model's files are. Raises DerbyError if it cannot be run from them as asked."""
    _placement(spec.device)
    if spec.precision not in PRECISIONS:
        raise DerbyError(
            f"The torch engine has no precision {spec.precision!r}: choose {_either(PRECISIONS)}."
        )

    files = model_files(spec.name, say, long=spec.long)
    if files.ready_made:
        raise DerbyError(
            f"{spec.name!r} is an OpenVINO model, which torch cannot run: choose the OpenVINO "
            "engine, or the model that it was made from."
        )
    return files


def load_model(spec: ModelSpec, files: ModelFiles, placement: dict[str, Any]) -> Any:
    """The transformers model, by from_pretrained's arguments `placement`. Raises DerbyError."""
    import torch
    from transformers import AutoConfig

    from backend.engines.torch.text_model import forget_other_media, text_model

    folder = files.folder
    # TF32 would cost fp32 its exactness, and with it the equality of lossless columns.
    torch.set_float32_matmul_precision("highest")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if files.long_factors:
            text = config.get_text_config(decoder=True)
            fix_long_factors({"rope_parameters": text.rope_parameters})
        found = text_model(config)
        load: Any = found.auto.from_pretrained
        model, loaded = load(
            folder,
            config=found.config,
            key_mapping=found.renamed,
            dtype=getattr(torch, PRECISIONS[spec.precision]),
            attn_implementation=_attention(found.kind, found.config),
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
    if found.whole:
        forget_other_media(model)
    if quantised_as(config.to_dict()) == "mxfp4":
        # transformers leaves what it unpacked in bf16, whatever it was asked for.
        model.to(getattr(torch, PRECISIONS[spec.precision]))
    return model


def runs_on_torch(folder: Path) -> bool:
    """Whether this engine could run a model, by its configuration alone: no weights are read."""
    import torch
    from transformers import AutoConfig

    from backend.engines.torch.recurrence.store import recurrent_layers
    from backend.engines.torch.text_model import text_model

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    try:
        found = text_model(config)
        with torch.device("meta"):
            model = found.auto.from_config(found.config)
        _calling(model, recurrent=bool(recurrent_layers(model)))
    except Exception:  # whatever a configuration of others makes it raise
        return False
    return True


def fix_positions(model: Any) -> None:
    """Have rotary positions keep the factors that they were made with: transformers would ask in
    every pass how far it reaches, and wait for the device to tell.
    """
    for module in model.modules():
        if getattr(module, "rope_type", "") in ("dynamic", LONGROPE):
            module.rope_type = "default"


def _attention(kind: Any, config: Any) -> str:
    """The attention that computes models of this class right."""
    text = config.get_text_config(decoder=True)
    # transformers' SDPA path silently drops soft-capping of attention logits.
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    # Older architectures (GPT-Neo, GPT-J, CodeGen, Bloom, MPT) have no SDPA path.
    return "sdpa" if kind._supports_sdpa and not capped else "eager"  # noqa: SLF001


def _placement(device: str) -> dict[str, Any]:
    """from_pretrained's arguments that put the weights on `device`. Raises DerbyError."""
    import torch

    present = ["CPU", *(f"CUDA:{i}" for i in range(torch.cuda.device_count())), "AUTO"]
    name = "CUDA:0" if device.upper() == "CUDA" else device.upper()
    if name not in present:
        raise DerbyError(
            f"The torch engine finds no device {device!r} here: choose {_either(present)}."
        )
    if name == "CPU":
        return {}
    return {"device_map": "auto" if name == "AUTO" else {"": name.lower()}}


def _counts_positions(config: Any) -> bool:
    """Whether the model takes no positions, but tells them from the rows in its cache."""
    return config.model_type in ("bloom", "mpt")


def _masks_trees(config: Any) -> bool:
    """Whether a mask and positions are all that attention goes by: not so with ALiBi, nor with the
    local layers of GPT-Neo and those of Llama 4 without rotary positions, which all go by a row's
    place in the cache.
    """
    if config.model_type in CHAINS_ALONE:
        return False
    alibi = _counts_positions(config) or getattr(config, "alibi", False)
    local = "local" in getattr(config, "attention_layers", ())
    return not alibi and not local and CHUNKED not in (getattr(config, "layer_types", None) or ())


def _not_fixed(model: Any, *, trees: bool) -> str:
    """Why passes of fixed widths, which ask the device for no value, cannot run this model; ""."""
    config = model.config.get_text_config(decoder=True)
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its weights lie on several devices"
    if not trees:
        return "its attention goes by a row's place in the cache"
    if any(getattr(config, name, None) for name in EXPERTS):
        return "which experts compute a row is found out on the way"
    return ""


def _require_fit(model: Any) -> None:
    """Raise DerbyError for a model whose code does not go by the positions, masks and cache that it
    is given.
    """
    config = model.config.get_text_config(decoder=True)
    named = inspect.signature(model.forward).parameters
    # BART and its like count positions themselves, from the rows in a cache of another kind.
    counts = "past_key_values" in named and "position_ids" not in named
    stateful = getattr(model, "_is_stateful", False)
    if config.model_type in UNFIT or (counts and not stateful and not _counts_positions(config)):
        raise DerbyError(
            f"Models of type {config.model_type!r} ignore the positions, masks or KV cache that "
            f"decoding sets: choose a model of another family."
        )


def _calling(model: Any, *, recurrent: bool) -> "Calling":
    """How to call the model; `recurrent`: its state is kept by layers that we know. Raises
    DerbyError if it cannot be rewound or branched.
    """
    import torch

    from backend.engines.torch.calling import Calling

    config = model.config.get_text_config(decoder=True)
    layer_types = set(getattr(config, "layer_types", None) or ())
    named = inspect.signature(model.forward).parameters
    if not recurrent and (
        # Granite's hybrids are one class with those that have no recurrent layer.
        (getattr(model, "_is_stateful", False) and not layer_types)
        or config.model_type in STATEFUL
        or not layer_types <= REWINDABLE
        or not (_counts_positions(config) or "position_ids" in named)
    ):
        raise DerbyError(
            f"Models of type {config.model_type!r} keep state that cannot be rewound to an earlier "
            "token: choose a model with attention and explicit positions, or with recurrent layers "
            "that docs/models.md names."
        )
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
        positions=not _counts_positions(config) and "position_ids" in named,
        cache="cache_params" if "cache_params" in named else "past_key_values",
    )


def _either(names: Any) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
