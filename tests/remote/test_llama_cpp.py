"""A real server: llama.cpp's own, on the built-in model's own GGUF file."""

import shlex

import httpx
import pytest
from races import board_after, events_of

from backend.cli.tables import summary
from backend.export.llama_cpp import ADDRESS
from backend.export.production import snippet
from backend.models.files import BUILT_IN, gguf_file
from backend.racing.race import Race
from backend.results.sentences import served, verdict
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request
from experiments.llama_server import LlamaServer

pytestmark = [pytest.mark.model, pytest.mark.thorough]


@pytest.fixture(scope="module")
def server() -> LlamaServer:
    return LlamaServer(gguf_file(BUILT_IN, print), "ngram-simple", size_n=2, size_m=4)


@pytest.fixture(scope="module")
def plain_server() -> LlamaServer:
    return LlamaServer(gguf_file(BUILT_IN, print))


def test_a_server_races_beside_local_columns(server: LlamaServer) -> None:
    """Its text is compared with fp32's; with log-probabilities it has a speed, and gaps."""
    address = server.address
    names = ("kv", "kv@int4-exact", f"@{address}", f"@{address}:gaps=true")
    race = Race(Request("List five rivers of Europe.", 48), tuple(map(parse_column, names)))
    board = board_after(race.columns, events_of(race))
    assert [score.state for score in board.scores] == ["done"] * 4
    plain, told = board.scores[2:]
    assert plain.text == told.text, "the same server, greedy"
    assert (plain.written, told.written) == (48, 48)
    assert 0 < told.tpot < 10
    assert min(told.gaps) >= 0
    assert (plain.drafted, plain.accepted) == (told.drafted, told.accepted)
    assert 0 < plain.accepted <= plain.drafted, "it speculates, and counts"
    assert "the server's own clock" in served(plain)
    for index in (2, 3):
        assert verdict(board, index).startswith(("identical to KV reuse", "differs from KV reuse"))
    assert plain.text[:20] == board.baseline.text[:20], "8-bit activations change a text late"
    assert summary(board).row_count == 4


@pytest.mark.parametrize("chat", [True, False])
def test_productions_request_gets_the_columns_text(
    plain_server: LlamaServer, *, chat: bool
) -> None:
    request, target = (
        Request("The rivers of Europe", 24, chat=chat),
        ModelSpec(BUILT_IN, "llamacpp", "gguf"),
    )
    race = Race(request, (parse_column("kv"),), target)
    [score] = board_after(race.columns, events_of(race)).scores
    code = snippet(race.columns[0], score, request, target, "llama.cpp").code
    *_, address, _, header, _, body = shlex.split(code.replace("\\\n", " "))
    sent = {"content": body, "headers": dict([header.split(": ")])}
    answer = httpx.post(address.replace(ADDRESS, plain_server.address), **sent, timeout=60)
    told = answer.raise_for_status().json()
    text = told["choices"][0]["message"]["content"] if chat else told["content"]
    assert text == score.text
