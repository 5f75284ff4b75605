"""A tiny random Llama that can be chatted with, as a folder with a tokenizer and a chat template,
and what may be wrong with its files.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 300
START, END, PAD = 0, 1, 2
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


def make(folder: Path) -> Path:
    """Write the model into `folder`, the same weights every time."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # layers that matter
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte, behind three special ones."""
    alphabet = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    fast = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=fast, bos_token=SPECIAL[0], eos_token=SPECIAL[1], pad_token=SPECIAL[2]
    )
    wrapped.chat_template = CHATML
    return wrapped


#: Makes a whole folder one that is not.
Damage = Callable[[Path], None]


def stating(file: str, **facts: Any) -> Damage:
    """A JSON file that says this instead."""

    def damage(folder: Path) -> None:
        stated = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(stated | facts))

    return damage


def holding(file: str, text: str) -> Damage:
    """A file of this text alone."""

    def damage(folder: Path) -> None:
        (folder / file).write_text(text)

    return damage


def without(*files: str) -> Damage:
    def damage(folder: Path) -> None:
        for file in files:
            (folder / file).unlink(missing_ok=True)

    return damage


def with_weights(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Other weights: `change` edits tensors of torch in place, by name."""

    def damage(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return damage
