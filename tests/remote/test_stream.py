"""Server-sent events: read whatever way the bytes come, and refused where they are none."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import DerbyError
from backend.remote.stream import DONE, MOST_EVENT, messages

OBJECTS = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), min_size=1),
    max_size=5,
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Objects, and their stream with any line ends and comments, cut anywhere."""
    objects, stream = draw(OBJECTS), b""
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    for each in objects:
        comment = draw(st.sampled_from([b"", b": still here" + end, b"event: message" + end]))
        written = json.dumps(each, ensure_ascii=draw(st.booleans())).encode(errors="replace")
        stream += comment + draw(st.sampled_from([b"data: ", b"data:"])) + written + end + end
    stream += b"data: [DONE]" + end + end
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    ends = [*cuts, len(stream)]
    return objects, [stream[a:b] for a, b in zip([0, *cuts], ends, strict=True)]


@given(streams())
def test_a_stream_is_read_wherever_it_is_cut(
    made: tuple[list[dict[str, Any]], list[bytes]],
) -> None:
    objects, pieces = made
    found = list(messages(pieces))
    assert found[:-1] == json.loads(json.dumps(objects).encode(errors="replace"))
    assert found[-1] is DONE


def test_nothing_behind_the_end_is_read() -> None:
    assert list(messages([b"data: [DONE]\n\ndata: {\n\n"])) == [DONE]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b"data: {\n\n"], "not JSON"),
        ([b"data: [1]\n\n"], "not a JSON object"),
        ([b"data: " + b"[" * 5000 + b"\n\n"], "not JSON"),
        ([b'data: {"a": "\xe2\x82"}\n\n'], "not UTF-8"),
        ([b"data: " + b"x" * (MOST_EVENT + 1)], "more than 1,048,576 bytes"),
        ([b"data: x\n"] * MOST_EVENT, "more than 1,048,576 bytes"),
        ([b"x" * (10 << 20)], "more than 1,048,576 bytes"),
    ],
)
def test_what_is_no_stream_is_refused(pieces: list[bytes], reason: str) -> None:
    with pytest.raises(DerbyError, match=reason):
        list(messages(pieces))


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    with suppress(DerbyError):
        assert all(isinstance(each, dict) for each in messages([b"data: ", *pieces, b"\n\n"]))
