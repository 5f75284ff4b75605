"""Text appears in whole characters, never shows a stop string, and is never lost."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_tokenizer import small_tokenizer

from backend.decoding.text_stream import TextStream
from backend.tokenizer import ByteTokenizer, Detokenizer


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the stop string begins that is complete first, read character by character."""
    for end in range(len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins)
    return None


class Pieces(ByteTokenizer):
    """Token i is piece i of a text."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    def stream(self) -> Detokenizer:
        return Detokenizer(self._pieces.__getitem__)


@given(
    st.text(alphabet="aé🙂", max_size=20).map(str.encode),
    st.lists(st.text(alphabet="aé🙂\ufffd", min_size=1, max_size=4), max_size=3),
    st.sets(st.integers(0, 60)),
    st.integers(0, 3),
)
@example(b"abc", ["abc", "b"], set(), 0)
@example(b"aabx", ["aab"], {1, 2, 3}, 0)
@example("a🙂".encode(), ["a\ufffd"], {1}, 1)
@settings(max_examples=300)
def test_a_stop_string_ends_the_text_however_it_arrives(
    data: bytes, stops: list[str], cuts: set[int], missing: int
) -> None:
    """The text may end inside a character, which is then shown as a replacement."""
    data = data[: len(data) - missing]
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    stream, output = TextStream(Pieces([data[i:j] for i, j in pairwise(edges)]), stops), ""
    for token, end in enumerate(edges[1:]):
        output += stream.push(token)
        text = data[:end].decode(errors="ignore")
        so_far = first_stop(text, stops)
        assert stream.stopped == (so_far is not None)
        if so_far is None:  # all but what may yet become a stop string
            longest = max(
                (n for s in stops for n in range(len(s)) if text.endswith(s[:n])), default=0
            )
            assert output == text[: len(text) - longest]
    output += stream.flush()
    whole = data.decode(errors="replace")
    assert output == whole[: first_stop(whole, stops)]
    assert stream.output == output


@pytest.mark.parametrize(
    ("stop", "output"),
    [("<|im_start|>", "ab"), ("<|im_", "abcd"), ("b<", "abcd")],
)
def test_a_special_token_ends_a_text_by_its_name_and_is_never_shown(
    tmp_path: Path, stop: str, output: str
) -> None:
    tokens = ["<eos>", "<|im_start|>", *"abcd"]
    tokenizer = small_tokenizer(tmp_path, tokens, merges=(), special=tokens[:2])
    stream = TextStream(tokenizer, [stop])
    text = "".join(map(stream.push, [2, 3, 1, 4, 5])) + stream.flush()
    assert (text, stream.stopped) == (output, output != "abcd")
