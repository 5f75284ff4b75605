"""The language model of a checkpoint, which may read images or sounds too."""

from dataclasses import dataclass
from typing import Any

from backend.errors import DerbyError

#: What weights of a language model are called within a larger checkpoint, old or new, and alone.
ALONE = {
    r"^(?:model\.)?(?:language_model|text_model)\.lm_head\.": "lm_head.",
    r"^(?:model\.)?(?:language_model|text_model)\.(?:model\.)?": "model.",
}


@dataclass(frozen=True, slots=True)
class TextModel:
    """How transformers loads it: by which auto class, as which class, with which configuration and
    weights `renamed` how (None: as they are called). `whole`: with the rest of the checkpoint.
    """

    auto: Any
    kind: Any
    config: Any
    renamed: dict[str, str] | None = None
    whole: bool = False


def text_model(config: Any) -> TextModel:
    """How to load the language model of a checkpoint with this configuration: alone where
    transformers has it as a model of its own. Raises DerbyError where there is none.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    causal: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    text = config.get_text_config(decoder=True)
    if text is not config and type(text) in causal:
        # What is said of the whole holds for its part.
        text.tie_word_embeddings = config.tie_word_embeddings
        if (quantised := getattr(config, "quantization_config", None)) is not None:
            text.quantization_config = quantised
        return TextModel(AutoModelForCausalLM, causal[type(text)], text, ALONE)
    if type(config) in causal:
        return TextModel(AutoModelForCausalLM, causal[type(config)], config)
    whole: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in whole:
        raise DerbyError(
            f"Models of type {config.model_type!r} do not continue a text: choose a causal "
            f"language model."
        )
    return TextModel(AutoModelForImageTextToText, whole[type(config)], config, whole=True)


def forget_other_media(model: Any) -> None:
    """Let go of what a model that was loaded whole reads images or sounds with. Mutates it."""
    base = model.base_model
    for name, part in list(base.named_children()):
        if part is not model.get_decoder():
            setattr(base, name, None)
