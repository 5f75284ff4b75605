"""A Hugging Face tokenizer from a GGUF file's own fields (byte-level BPE models only).

What transformers makes of these files has tokens that the model lacks and loses every space once
saved and reloaded, so the tokenizer is put together here from its parts.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.errors import DerbyError
from backend.models.gguf_header import ANY_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: GGUF's token_type of a control token, and of one that its user added.
CONTROL, USER_DEFINED = 3, 4

SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}

#: What Llama 3 and Qwen 2 split texts by before merging; they differ in how many digits stay
#: together (their tokenizer.json files; llama.cpp's src/llama-vocab.cpp).
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

#: The kinds of texts' first splits that are known, by `tokenizer.ggml.pre`.
KNOWN = ("gpt-2", "smollm", "starcoder", "llama-bpe", "qwen2")


def tokenizer_from_gguf(fields: Mapping[str, Any]) -> "PreTrainedTokenizerFast":
    """The tokenizer whose ids are exactly the indices of `tokenizer.ggml.tokens`; `fields` are the
    file's metadata by name.

    Raises DerbyError for any kind but KNOWN byte-level BPEs: other kinds split text differently
    before merging, and would give wrong ids silently.
    """
    from transformers import PreTrainedTokenizerFast

    kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if kind[0] != "gpt2" or kind[1] not in KNOWN:
        raise DerbyError(
            f"The GGUF file has a tokenizer of the kind {kind[0]!s:.40}/{kind[1]!s:.40}, and only "
            f"gpt2/{', '.join(KNOWN)} are built from a file's own fields: put the model's "
            f"tokenizer.json beside it, {ANY_FILE}."
        )
    try:
        tokens: list[str] = fields["tokenizer.ggml.tokens"]
        roles = {role: tokens[fields[key]] for role, key in SPECIAL.items() if key in fields}
        context = fields[f"{fields['general.architecture']}.context_length"]
        bpe = _byte_level_bpe(fields, str(kind[1]), roles.get("bos_token"))
    except Exception as error:  # the tokenizers library has no other name for its own
        raise DerbyError(
            f"The GGUF file's tokenizer is incomplete ({error!s:.100}): put the model's "
            f"tokenizer.json beside it, {ANY_FILE}."
        ) from error
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        **roles,
    )
    fast.chat_template = fields.get("tokenizer.chat_template")
    return fast


def _byte_level_bpe(fields: Mapping[str, Any], pre: str, bos: str | None) -> Any:
    """The `tokenizers.Tokenizer`: texts are split, then their bytes merged in GPT-2's manner."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields.get("tokenizer.ggml.merges", ())]
    # Llama 3's words that are tokens are not merged from their parts.
    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = _pre_tokenizer(pre)
    bpe.decoder = decoders.ByteLevel()
    types: list[int] = fields["tokenizer.ggml.token_type"]
    for wanted, add in ((CONTROL, bpe.add_special_tokens), (USER_DEFINED, bpe.add_tokens)):
        add(
            [
                AddedToken(token, special=wanted == CONTROL, normalized=False)
                for token, kind in zip(tokens, types, strict=True)
                if kind == wanted
            ]
        )
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    return bpe


def _pre_tokenizer(pre: str) -> Any:
    """What splits a text before its bytes are merged."""
    from tokenizers import Regex, pre_tokenizers

    if pre in ("llama-bpe", "qwen2"):
        words = Regex(WORDS.format(digits="{1,3}" if pre == "llama-bpe" else ""))
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(words, behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "gpt-2":
        return words
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
