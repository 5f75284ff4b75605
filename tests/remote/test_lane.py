"""A server's column: what it shows of each server, by whose clock, and what a bad one does."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from races import run_solo
from scripted_server import Script, said, scripted
from server_streams import (
    COUNTED,
    FAKE,
    GAPS,
    LLAMA_CPP,
    PLAIN,
    REQUEST,
    VLLM,
    Message,
    chat,
    likely,
    raced,
    usage,
)

from backend.bench.rows import figures_of
from backend.bench.summary import Measured, results
from backend.bench.tables import results_table
from backend.errors import DerbyError
from backend.events import Event, Failed, Finished, Served, Started, Step
from backend.export.tables import csv_table
from backend.racing.commands import run_to_end
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.records.file import as_bytes, from_bytes
from backend.records.record import board as board_of
from backend.records.record import recorded
from backend.remote import lane as lanes
from backend.remote import lock as locks
from backend.remote.lane import Answer
from backend.remote.server import VARIABLE
from backend.results.figures import figure
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import brief, pace, served, state, verdict
from backend.strategies.column import parse_column
from backend.types import Request, Sampling
from backend.web.view import view


def served_by(
    messages: Sequence[Message], settings: str = "", request: Request = REQUEST
) -> tuple[list[Event], Scoreboard, Script]:
    """A race of KV reuse and a server that answers so."""
    script = Script(said(*messages))
    with scripted(script) as address:
        events, board = raced("kv", f"@{address}{settings}", request=request)
    return events, board, script


def of_server(events: list[Event]) -> list[Event]:
    return [event for event in events if getattr(event, "column", 0) == 1]


def test_a_plain_stream_has_text_and_times_but_no_speed() -> None:
    """Nobody says how many tokens its messages hold."""
    events, board, _ = served_by(PLAIN)
    score = board.scores[1]
    assert (score.state, score.reason, score.text) == ("done", "end of text", "One two three")
    assert (score.clock, score.times, score.tpot) == ("network", [], 0.0)
    assert score.ttft > 0
    assert figure("rate").value(score, board.baseline) is None
    assert "no token counts" in brief(board, 1)
    assert score.round_trip > 0
    assert sum(isinstance(event, Step) for event in of_server(events)) == 3


def test_as_many_messages_as_tokens_are_tokens() -> None:
    """The end of the text, which some servers count, has no message with text."""
    for count in (3, 4):
        _, board, _ = served_by([*PLAIN, {"choices": [], "usage": usage(7, count)}])
        score = board.scores[1]
        assert (score.length, score.prompt_tokens, score.first_block) == (3, 7, 1)
        assert score.tpot == pytest.approx((score.times[2] - score.times[0]) / 2)
        assert score.gaps == [inf] * 3
        assert "no token counts" not in served(score)
    _, board, _ = served_by([*PLAIN, {"choices": [], "usage": usage(7, 9)}])
    assert board.scores[1].length == 0, "messages held several tokens, and nobody knows which"


def test_llama_cpps_own_clock_is_used_where_it_sends_one() -> None:
    events, board, script = served_by(LLAMA_CPP)
    score = board.scores[1]
    assert score.clock == "server"
    assert score.times == pytest.approx([0.05, 0.06, 0.07])
    assert (score.ttft, score.tpot) == pytest.approx((0.05, 0.01))
    assert (score.prompt_tokens, score.drafted, score.accepted) == (7, 3, 1)
    assert script.asked[0]["timings_per_token"] is True
    assert "server's own clock" in brief(board, 1)
    assert board.gain(1).value > 0
    assert not board.gain(1).known, "the machines' states are not the same"
    assert pace(board, 1) == "another clock"
    told = [event for event in events if isinstance(event, Served)]
    assert {event.clock for event in told} == {"server"}


def test_vllms_counts_ids_and_guesses_are_shown() -> None:
    events, board, script = served_by(VLLM)
    score = board.scores[1]
    assert (score.clock, score.tokens, score.length) == ("network", [11, 12, 13], 3)
    assert (score.first_block, score.prompt_tokens) == (2, 7)
    assert (score.drafted, score.accepted) == (6, 2)
    assert [len(e.origins) for e in of_server(events) if isinstance(e, Step)] == [2, 1]
    assert script.asked[0]["return_token_ids"] is True
    assert script.asked[0]["stream_options"]["continuous_usage_stats"] is True


def test_a_character_of_several_tokens_keeps_them_all() -> None:
    """The first ones come without text; once, their ids were lost."""
    messages = [
        chat("", usage=usage(7, 1), token_ids=[11]),
        chat("", usage=usage(7, 2), token_ids=[12]),
        chat("\N{SNOWMAN}", usage=usage(7, 3), token_ids=[13]),
        chat("!", "stop", usage=usage(7, 4), token_ids=[14]),
    ]
    _, board, _ = served_by(messages)
    assert board.scores[1].tokens == [11, 12, 13, 14]
    assert board.scores[1].length == 4


def test_log_probabilities_count_tokens_and_tell_gaps() -> None:
    _, board, script = served_by(GAPS, ":gaps=true")
    score = board.scores[1]
    assert (score.gaps, score.length, score.reason) == ([1.0, 3.0], 2, "token limit")
    assert (script.asked[0]["logprobs"], script.asked[0]["top_logprobs"]) == (True, 2)


def test_completions_have_a_form_of_their_own() -> None:
    tokens = {"tokens": ["a", "b"], "top_logprobs": [{"a": -1.0, "c": -1.5}, {"b": -0.5}]}
    messages = [
        {"choices": [{"text": "ab", "logprobs": tokens, "finish_reason": None}]},
        {"choices": [{"text": "", "logprobs": None, "finish_reason": "length"}]},
    ]
    request = replace(REQUEST, chat=False, stop=("x",))
    _, board, script = served_by(messages, ":gaps=true", request)
    assert board.scores[1].gaps == [0.5, inf]
    asked = script.asked[0]
    assert script.paths == ["/v1/completions"]
    assert (asked["prompt"], asked["logprobs"], asked["stop"]) == ("Hello there", 2, ["x"])


def test_the_request_is_the_races() -> None:
    request = Request("Why?", 9, Sampling(0.7, 40, 0.9, 2**40 + 5))
    _, board, script = served_by(PLAIN, request=request)
    asked = script.asked[0]
    assert script.paths == ["/v1/chat/completions"]
    assert asked["messages"] == [{"role": "user", "content": "Why?"}]
    assert (asked["temperature"], asked["top_k"], asked["top_p"]) == (0.7, 40, 0.9)
    assert (asked["max_tokens"], asked["seed"], asked["model"]) == (9, 5, "tiny")
    assert board.scores[1].model.startswith("tiny on 127.0.0.1:")


def test_all_tokens_may_be_drawn_and_the_prompt_is_read_anew() -> None:
    """SGLang refuses a top-k of 0, and was then asked for less. A warm cache made the first token
    come sooner than any column here could read the prompt.
    """
    salts = set[str]()
    for _ in range(2):
        script = Script(said(*COUNTED), wrong=lambda asked: asked.get("top_k") == 0)
        with scripted(script) as address:
            raced(f"@{address}", request=replace(REQUEST, sampling=Sampling(0.7)))
        (asked,) = script.asked
        assert (asked["top_k"], asked["cache_prompt"]) == (-1, False)
        salts.add(asked["cache_salt"])
    assert len(salts) == 2


def test_a_server_of_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It got the requests, and a server's key with them."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    _, board, _ = served_by(PLAIN)
    assert board.scores[1].message == ""


def test_a_speed_up_that_is_known_at_the_end_is_told() -> None:
    """It stayed unknown where somebody had looked between the last text and the server's count."""
    events, whole, _ = served_by(COUNTED)
    looked = Scoreboard(whole.columns)
    for event in events:
        looked.add(event)
        looked.gain(1)
    assert looked.gain(1) == whole.gain(1)


def test_a_server_that_refuses_more_fields_is_asked_for_less() -> None:
    for refused in ("timings_per_token", "stream_options"):
        script = Script(said(*COUNTED), wrong=lambda asked, name=refused: name in asked)
        with scripted(script) as address:
            _, board = raced(f"@{address}:model=other")
        assert board.scores[0].text == "One two three"
        assert len(script.asked) == (2 if refused == "timings_per_token" else 3)
        assert script.asked[-1]["model"] == "other"


def test_texts_are_compared_where_ids_mean_nothing() -> None:
    _, board = raced("kv")
    text, length = board.scores[0].text, board.scores[0].length
    same = [chat(text[:5]), chat(text[5:]), chat("", "length")]
    _, board, _ = served_by(same)
    assert verdict(board, 1) == f"identical to KV reuse ({len(text)} characters)"
    for at in (0, length // 2, length - 1):
        other = [chat(text[:at] + "\N{SNOWMAN}" + text[at + 1 :]), chat("", "length")]
        _, board, _ = served_by(other)
        assert f"differs from KV reuse at token {board.baseline.token_at(at) + 1}" in verdict(
            board, 1
        )
        assert board.sameness(1) == "allowed", "nothing is known of what it runs on"
    assert board.baseline.token_at(0) == 0
    assert board.baseline.token_at(len(text) - 1) <= length - 1


def test_a_record_holds_a_servers_column() -> None:
    for messages in (PLAIN, COUNTED, LLAMA_CPP, VLLM, GAPS):
        events, board, _ = served_by(messages)
        record = recorded(REQUEST, board.columns, FAKE, events)
        read = from_bytes(as_bytes(record))
        assert view(board_of(read), race=1, goal=24) == view(board, race=1, goal=24)
        assert csv_table(record).splitlines()[-1].endswith(f",{board.scores[1].clock}")


NUMBERS = st.integers(-5, 40) | st.floats() | st.sampled_from([10**400, -(10**9), True, None, "1"])
IDS = st.lists(NUMBERS | st.integers(0, 9), max_size=4)


PLACES = st.lists(
    NUMBERS
    | st.dictionaries(st.sampled_from("ab"), NUMBERS, max_size=2)
    | st.tuples(NUMBERS, NUMBERS).map(lambda pair: likely("a", *pair)["content"][0]),
    max_size=3,
)


def _any(names: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names.split()), values, max_size=4)


ANY_MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {"delta": st.fixed_dictionaries({"content": st.sampled_from(["", "a", "\ud83d"])})},
                optional={
                    "finish_reason": st.sampled_from(["stop", "length", 3]),
                    "token_ids": IDS,
                    "logprobs": _any("tokens top_logprobs content", PLACES),
                },
            ),
            max_size=1,
        ),
        "usage": _any("prompt_tokens completion_tokens", NUMBERS),
        "timings": _any("prompt_ms predicted_ms predicted_n draft_n draft_n_accepted", NUMBERS),
    },
)


@given(st.lists(ANY_MESSAGE, max_size=6))
def test_whatever_a_server_says_can_be_recorded(said_by_it: list[dict[str, Any]]) -> None:
    """Ids that were fewer than tokens, gaps beyond all bounds, and half of a surrogate pair made
    records that could not be read.
    """
    column = parse_column("@somewhere")
    events: list[Event] = [Started(0, 0, "a model on somewhere")]
    with suppress(DerbyError):
        events += Answer(0, REQUEST, 0.001, 0.0).events(said(*said_by_it))
    record = recorded(REQUEST, (column,), FAKE, events)
    read = from_bytes(as_bytes(record))
    assert read.events == record.events
    json.dumps(view(board_of(read), race=1, goal=24)).encode()


def test_a_column_without_an_answer_waits() -> None:
    held = threading.Event()
    script = Script(said(*PLAIN), held=held)
    seen: list[str] = []
    with scripted(script) as address:
        entered = Race(REQUEST, (parse_column("kv"), parse_column(f"@{address}")), FAKE)
        board = Scoreboard(entered.columns)

        def emit(event: Event) -> None:
            board.add(event)
            seen.append(state(board.scores[1]))
            if isinstance(event, Finished) and event.column == 0:
                held.set()

        run_to_end(entered, LoadedModels(), emit, lambda: False)
    assert "waiting for its first token" in seen
    assert board.scores[1].state == "done"


def test_two_columns_of_a_server_run_one_after_the_other() -> None:
    """llama-cpp-python's server ends an answer when it is asked for the next."""
    script = Script(said(*PLAIN))
    with scripted(script) as address:
        _, board = raced(f"@{address}", f"@{address}:model=a", f"@{address}:model=b")
    assert [score.state for score in board.scores] == ["done"] * 3
    assert (len(script.asked), script.together) == (3, 1)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "dies": ({"pieces": said(*PLAIN[:3], done=False), "breaks": True}, "broke off"),
    "ends without a reason": ({"pieces": said(*PLAIN[:3])}, "broke off after 7 bytes"),
    "half a character": (
        {"pieces": [b'data: {"choices": [{"delta": {"content": "\xe2\x82"}}]}\n\n']},
        "not UTF-8",
    ),
    "ten megabytes": ({"pieces": [b"data: " + b"x" * (10 << 20)]}, "more than 1,048,576 bytes"),
    "a page": ({"pieces": [b"<html>"], "kind": "text/html"}, "'text/html' instead of a stream"),
    "no key": ({"status": 401, "pieces": [b"key sk-hush"]}, "needs another key.*status 401"),
    "too many": ({"status": 429}, "try again later .status 429"),
    "not ready": ({"status": 503}, "is not ready"),
    "elsewhere": ({"status": 302}, "status 302"),
    "a flaw": ({"status": 500, "pieces": [b"out\nof \x00memory"]}, "refused.*: out of memory"),
    "an error": ({"pieces": said({"error": {"message": "no room"}})}, "says: no room"),
    "no answer": ({"pieces": said({"choices": 3})}, "is not OpenAI-compatible"),
    "no text": (
        {"pieces": said({"choices": [{"text": 3}]})},
        "is not OpenAI-compatible",
    ),
    "too much": (
        {"pieces": said(*[chat("x" * 2000)] * 50)},
        "although it was asked for 24 tokens",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_fails_its_own_column_in_a_sentence(name: str) -> None:
    settings, reason = BAD[name]
    with scripted(Script(**settings)) as address:
        events, board = raced("kv", f"@{address}")
    host = address.removeprefix("http://")
    assert [score.state for score in board.scores] == ["done", "failed"]
    failed = [event.message for event in events if isinstance(event, Failed)]
    with pytest.raises(DerbyError, match=reason):
        raise DerbyError(*failed)
    assert failed[0].startswith(f"The server {host} ")
    assert "reference" not in failed[0]


def test_nobody_there_is_a_sentence() -> None:
    with scripted(Script()) as address:
        pass
    _, board = raced("kv", f"@{address}", "@nowhere")
    assert "does not answer: start it" in board.scores[1].message
    assert "There is no server 'nowhere'" in board.scores[2].message
    assert board.scores[0].state == "done"


def test_a_server_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "SILENCE", 0.2)
    with scripted(Script(said(*PLAIN), held=threading.Event())) as address:
        _, board = raced("kv", f"@{address}")
    assert "sent nothing for 0 s" in board.scores[1].message


def test_a_program_is_refused() -> None:
    with scripted(Script(said(*PLAIN))) as address:
        _, board = raced("kv", f"@{address}", request=Request("A {{gen 'word'}} b"))
    assert "cannot run programs" in board.scores[1].message


@pytest.fixture
def named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A server that is offered by name, with a key."""
    script = Script(said(*COUNTED))
    with scripted(script) as address:
        path = tmp_path / "servers.toml"
        path.write_text(f'[mine]\nurl = "{address}"\nkey = "sk-hush"\n')
        monkeypatch.setenv(VARIABLE, str(path))
        yield script


def test_a_key_goes_to_its_server_and_nowhere_else(named: Script) -> None:
    events, board = raced("kv", "@mine")
    assert named.keys == ["Bearer sk-hush"]
    assert board.scores[1].model == "tiny on mine"
    record = as_bytes(recorded(REQUEST, board.columns, FAKE, events))
    assert b"hush" not in record
    assert b"127.0.0.1" not in record, "nor does the address of one that goes by a name"
    named.pieces, named.status = [b"you sent sk-hush"], 500
    _, board = raced("kv", "@mine")
    assert board.scores[1].message.endswith("refused the request: you sent ... (status 500).")


def test_a_stop_ends_a_servers_column() -> None:
    with scripted(Script(said(*PLAIN), held=threading.Event())) as address:
        entered = Race(REQUEST, (parse_column(f"@{address}"),), FAKE)
        events: list[Event] = []
        run_to_end(entered, LoadedModels(), events.append, lambda: len(events) > 2)
    assert [e.reason for e in events if isinstance(e, Finished)] == ["stopped"]


@pytest.mark.parametrize("waits", ["held", "silent"])
def test_a_stop_breaks_the_connection_off_and_frees_the_server(
    waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped race once kept a silent server's lock for as long as silence is borne."""
    monkeypatch.setattr(lanes, "SILENCE", 3600.0)
    script, waited = Script(said(*PLAIN)), threading.Event()
    setattr(script, waits, waited)
    with scripted(script) as address:
        columns = (parse_column(f"@{address}"), parse_column(f"@{address}:model=waits"))
        entered = Race(REQUEST, columns, FAKE)
        events: list[Event] = []

        def waiting() -> bool:
            steps = sum(isinstance(event, Step) for event in events)
            return bool(script.asked) and steps == (3 if waits == "held" else 0)

        run_to_end(entered, LoadedModels(), events.append, waiting)
        lock = locks._server_lock(f"{address}/v1")
        assert lock.acquire(timeout=30), "the server is still taken"
        lock.release()
        for reader in [each for each in threading.enumerate() if each.name == "lane"]:
            reader.join(timeout=30)
            assert not reader.is_alive(), "it still waits for bytes"
        setattr(script, waits, None)
        _, board = raced(f"@{address}")
        assert board.scores[0].state == "done"
        assert {asked["model"] for asked in script.asked} == {"tiny"}, "nobody else came in"
        waited.set()


def test_a_turn_that_was_ended_lets_nobody_in() -> None:
    ended = locks.ServerLock("http://one")
    ended.end()
    with pytest.raises(DerbyError, match="stopped"), ended:
        pass
    with locks.ServerLock("http://one"):
        assert not locks._server_lock("http://one").acquire(blocking=False)
    assert locks._server_lock("http://one").acquire(blocking=False)
    locks._server_lock("http://one").release()


def test_a_bench_takes_a_server() -> None:
    text = raced("kv")[1].scores[0].text
    for answer, equal in ((text, True), (f"{text[:-1]}?", False)):
        last = chat("", "length", usage=usage(3, 2))
        messages = [chat(answer[:4]), chat(answer[4:]), last]
        with scripted(Script(said(*messages))) as address:
            columns = (parse_column("kv"), parse_column(f"@{address}"))
            race, models = Race(REQUEST, columns, FAKE), LoadedModels()
            base, score = (run_solo(race, index, models) for index in (0, 1))
        found = figures_of(columns[1], base, score)
        assert found.equal == equal
        assert found.speedup > 0
        assert found.ttft is not None
        (result,) = results([Measured("served", "", number, found) for number in range(9)])
        assert (result.clock, result.equal) == ("network", 9 * equal)
        assert result.interval is None, "the clocks are not the same"
        assert (result.tokens_per_forward, result.acceptance, result.overhead) == (None, None, None)


def test_a_bench_takes_a_server_that_tells_no_counts() -> None:
    """It was an IndexError; and ids of another tokenizer are no other text."""
    base = raced("kv")[1].scores[0]
    for messages in (
        [chat(base.text), chat("", "length")],
        [chat(base.text, token_ids=[1, 2]), chat("", "length")],
    ):
        with scripted(Script(said(*messages))) as address:
            column = parse_column(f"@{address}")
            score = run_solo(Race(REQUEST, (column,), FAKE), 0, LoadedModels())
        (result,) = results([Measured("served", "", 0, figures_of(column, base, score))])
        assert (result.tpot, result.equal) == (None, 1)
        assert result.ttft is not None
        if not score.tokens:
            assert (result.speedup, result.spread, result.end_to_end) == (None, None, None)
        text = results_table("", [result])
        assert "clock" in [each.header for each in text.columns]
