"""python -m experiments built_in: assets/built-in, of the published GGUF file.

Weights and tokenizer come from the file, the graph from a conversion of these like any model's. Run
it after a change of what a conversion writes, or of the versions that make it.
"""

import gzip
import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from backend.cli.console import say
from backend.engines.openvino.export import openvino_ir
from backend.models.builtin import ASSETS, LAYOUT, built_in_gguf
from backend.models.files import IR
from backend.types import ModelSpec

#: What Hugging Face calls a tensor, by its name in GGUF without number and suffix.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

#: Heads whose rows GGUF has in another order.
HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}

#: Special tokens, by what transformers calls them.
SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}

#: GGUF's token_type of a control token.
CONTROL = 3

#: Bytes of the graph's constants that are no tensor of the model, at most.
SMALL = 1024


def built_in() -> None:
    """Write the assets of the built-in model anew."""
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(built_in_gguf(say))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors, rows = {}, []
    for tensor in reader.tensors:
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()  # type: ignore[union-attr]
        weight = dequantize(tensor.data, tensor.tensor_type)
        heads = fields[HEADS[kind]] if kind in HEADS else 0
        if heads:
            pairs = weight.reshape(heads, len(weight) // heads // 2, 2, -1)
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        name = f"model.layers.{layer}." * bool(layer) + f"{NAMES[kind]}.weight"
        tensors[name] = weight.copy()
        rows.append((name, tensor.tensor_type.name, weight.shape, tensor.data_offset, heads))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        _tokenizer(fields).save_pretrained(folder)
        for name in ("config.json", "generation_config.json"):
            shutil.copy(ASSETS / name, folder)
        ir = openvino_ir(ModelSpec(str(folder)), say)
        places, constants = _layout(
            ir, {name: tensor.tobytes() for name, tensor in tensors.items()}
        )
        lines = ",\n".join(json.dumps([*row, places[row[0]]]) for row in rows)
        text = f'{{"constants": {json.dumps(constants)},\n"tensors": [\n{lines}\n]}}\n'
        (ASSETS / LAYOUT).write_text(text)
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(folder / name, ASSETS)
        for path in (folder / "tokenizer.json", ir / IR[0]):
            packed = gzip.compress(path.read_bytes(), mtime=0)
            (ASSETS / f"{path.name}.gz").write_bytes(packed)


def _layout(ir: Path, tensors: dict[str, bytes]) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """Where each tensor begins in the IR's weights, and all else there: offsets and bytes."""
    stored, places, constants = (ir / IR[1]).read_bytes(), {}, {}
    for begin, size in re.findall(r'offset="(\d+)" size="(\d+)"', (ir / IR[0]).read_text()):
        place, end = int(begin), int(begin) + int(size)
        while place < end:  # products that were merged have several tensors' rows
            names = (n for n, data in tensors.items() if stored.startswith(data, place))
            if (name := next(names, None)) is None:
                assert end - place <= SMALL, "weights that no tensor has"
                constants[place] = stored[place:end].hex()
                break
            places[name] = place
            place += len(tensors[name])
    return places, sorted(constants.items())


def _tokenizer(fields: dict[str, Any]) -> Any:
    """The tokenizer whose ids are the indices of `tokenizer.ggml.tokens`: digits one by one, then
    GPT-2's words, whose bytes are merged. What transformers itself makes of the file has tokens
    that the model lacks, and loses every space once saved and reloaded.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    words: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits: Any = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, words])  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **{role: tokens[fields[key]] for role, key in SPECIAL.items() if key in fields},
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    return fast
