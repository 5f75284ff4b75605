"""Loads any causal language model of transformers from a folder."""

from typing import Any

from backend.errors import DerbyError, unknown
from backend.models.checkpoint import loading_error, quantised_as, require_all_weights
from backend.models.files import LONGROPE, ModelFiles, Say, model_files
from backend.types import ModelSpec

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
        raise unsuitable(config)
    if text is not config:  # what is said of the whole holds for its part
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
