"""A tokenizer of a few letters, for tests that need tokens longer than a byte."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.tokenizer import HfTokenizer

#: "ab" and "abc" are merges.
TOKENS = ("<eos>", *"abc", "ab", "abc")
WIDTH = 16


def small_tokenizer(
    folder: Path,
    tokens: Sequence[str] = TOKENS,
    *,
    merges: Sequence[tuple[str, str]] = (("a", "b"), ("ab", "c")),
    special: Sequence[str] = (),
    eos: bool = True,
    known: bool = True,
) -> HfTokenizer:
    """Byte-level, for logits WIDTH wide; `eos`: it has an end, `known`: it names its class."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer: Any = Tokenizer(models.BPE(ids, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return saved(tokenizer, folder, eos=eos, known=known)


def saved(
    tokenizer: Any, folder: Path, *, eos: bool = True, known: bool = True, width: int = WIDTH
) -> HfTokenizer:
    """What the app reads of a tokenizer of the library's."""
    if eos:
        tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<eos>"} if eos else {}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"} if known else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return HfTokenizer(folder, frozenset(), width)


def sentencepiece_like(folder: Path, octets: Sequence[int] = ()) -> HfTokenizer:
    """Like Llama 2's: a text gets a space in front, which decoding takes away; "<s>" begins it.
    Of bytes that are no character, it knows `octets`.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    letters = [*map(chr, range(33, 127)), "\u2581", *(f"<0x{byte:02X}>" for byte in octets)]
    merges = [("\u2581", "a"), ("\u2581", "b"), ("a", "b"), ("\u2581a", "b")]
    pieces = ["<unk>", "<s>", "</s>", *letters, *("".join(pair) for pair in merges)]
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer: Any = Tokenizer(models.BPE(ids, merges, unk_token="<unk>"))  # noqa: S106
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    read = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*read, decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return HfTokenizer(folder, frozenset(), len(pieces))
