"""A Hugging Face tokenizer from a GGUF file's own fields (byte-level BPE models only).

What transformers makes of these files has tokens that the model lacks and loses every space once
saved and reloaded, so the tokenizer is put together here from its parts.
"""

from typing import TYPE_CHECKING, Any

from backend.errors import DerbyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: GGUF's token_type of a control token.
CONTROL = 3

SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def tokenizer_from_gguf(fields: dict[str, Any]) -> "PreTrainedTokenizerFast":
    """The tokenizer whose ids are exactly the indices of `tokenizer.ggml.tokens`; `fields` are the
    file's metadata by name.

    Raises DerbyError for any kind but SmolLM's byte-level BPE: other kinds split text differently
    before merging, and would give wrong ids silently.
    """
    from transformers import PreTrainedTokenizerFast

    kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise DerbyError(f"This file has a tokenizer of kind {kind}; only gpt2/smollm is known.")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(fields),
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **{role: tokens[fields[key]] for role, key in SPECIAL.items()},
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    return fast


def _byte_level_bpe(fields: dict[str, Any]) -> Any:
    """The `tokenizers.Tokenizer`: digits one by one, then bytes merged in GPT-2's manner."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    types: list[int] = fields["tokenizer.ggml.token_type"]
    bpe.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    return bpe
