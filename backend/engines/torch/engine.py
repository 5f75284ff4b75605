"""Any transformers causal LM, run by PyTorch on the CPU or on CUDA devices."""

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.base import Session
from backend.engines.torch.hidden_states import LastHiddenStates
from backend.errors import DerbyError
from backend.text import HfTokenizer, Tokenizer
from backend.types import PREFILL_CHUNK, Capabilities, ModelSpec, chain_parents

if TYPE_CHECKING:
    from backend.engines.torch.session import Calling

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
REWINDABLE = {"full_attention", "sliding_attention"}


class TorchEngine:
    """A loaded causal LM. Raises DerbyError for a model whose state cannot be rewound."""

    def __init__(
        self,
        spec: ModelSpec,
        model: Any,
        tokenizer: Tokenizer,
        max_context: int,
        fingerprint: str = "",
    ) -> None:
        self.spec = spec
        self.fingerprint = fingerprint
        self.tokenizer = tokenizer
        self.capabilities = Capabilities(tree=True, hidden_states=True, max_context=max_context)
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self._model = model.eval()
        self._calling = _calling(model, max_context)
        self._seen = LastHiddenStates(model)
        self._cuda = sorted(
            {p.device for p in model.parameters() if p.device.type == "cuda"}, key=str
        )

    def open(self) -> Session:
        from backend.engines.torch.session import TorchSession

        return TorchSession(self._model, self._calling, self._seen)

    def warm_up(self) -> Iterator[None]:
        """First passes allocate and, on a GPU, choose kernels."""
        session = self.open()
        for width in (PREFILL_CHUNK, 1, 2, 3, 4, 5, 6, 7, 8):
            session.forward([0] * width, chain_parents(width), (0,))
            session.truncate(0)
            yield
        session.close()

    def synchronize(self) -> None:
        import torch

        for device in self._cuda:
            torch.cuda.synchronize(device)


def open_torch(spec: ModelSpec, say: Callable[[str], None]) -> TorchEngine:
    """Load the model that `spec` names; `say` hears what takes long. Raises DerbyError."""
    placement = _placement(spec.device)
    if spec.precision not in PRECISIONS:
        raise DerbyError(
            f"The torch engine has no precision {spec.precision!r}: choose {_either(PRECISIONS)}."
        )

    from backend.models.files import model_files

    files = model_files(spec.name, say)
    _set_threads()
    model = _load(spec, files.folder, placement)
    tokenizer = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    return TorchEngine(spec, model, tokenizer, files.max_context, files.fingerprint)


def _load(spec: ModelSpec, folder: Path, placement: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # TF32 would cost fp32 its exactness, and with it the equality of lossless columns.
    torch.set_float32_matmul_precision("highest")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        text = config.get_text_config(decoder=True)
        # transformers' SDPA path silently drops soft-capping of attention logits.
        capped = getattr(text, "attn_logit_softcapping", None) is not None
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, PRECISIONS[spec.precision]),
            attn_implementation="eager" if capped else "sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            **placement,
        )
    except torch.OutOfMemoryError as error:
        raise DerbyError(
            f"{spec} does not fit on the device: choose bf16, a smaller model or the device AUTO."
        ) from error
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DerbyError(
            f"The torch engine cannot load {spec.name!r} ({reason}); choose another model."
        ) from error


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


def _calling(model: Any, max_context: int) -> "Calling":
    """How to call the model. Raises DerbyError if its state cannot be rewound or branched."""
    import torch

    from backend.engines.torch.session import Calling

    config = model.config.get_text_config(decoder=True)
    layer_types = set(getattr(config, "layer_types", None) or ())
    if (
        getattr(model, "_is_stateful", False)
        or not layer_types <= REWINDABLE
        or getattr(config, "num_kv_shared_layers", 0)
        or "position_ids" not in inspect.signature(model.forward).parameters
    ):
        raise DerbyError(
            f"Models of type {config.model_type!r} keep state that cannot be rewound to an earlier "
            "token: choose a model with plain or sliding-window attention and explicit positions."
        )
    window = getattr(config, "sliding_window", None)
    if layer_types and "sliding_attention" not in layer_types:
        window = None
    device = model.get_input_embeddings().weight.device
    return Calling(
        # Offloaded weights sit on "meta" until their turn; accelerate moves the inputs itself.
        device=torch.device("cpu") if device.type == "meta" else device,
        dtype=model.dtype,
        max_context=max_context,
        window=window,
        by_layer_type=bool(layer_types),
    )


def _set_threads() -> None:
    """One torch thread per physical core that this process may use."""
    import psutil
    import torch

    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = logical or 1
    torch.set_num_threads(min(psutil.cpu_count(logical=False) or cores, cores))


def _either(names: Any) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"
