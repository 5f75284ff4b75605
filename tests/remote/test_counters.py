"""What a server counts at /metrics: whose it is, and that nothing there can spoil a column."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Script, said, scripted
from server_streams import COUNTED, FAKE, LLAMA_CPP, PLAIN, REQUEST, VLLM, raced

from backend.records.file import as_bytes, from_bytes
from backend.records.record import board as board_of
from backend.records.record import recorded
from backend.remote import counters
from backend.remote.counters import NOTHING, Counters, read_counters
from backend.remote.server import VARIABLE
from backend.results.figures import leading
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import served

Metrics = tuple[int, str, bytes]

PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def vllm(counted: Counters, engine: int = 0) -> str:
    """As vLLM 0.32 writes it: https://docs.vllm.ai/en/v0.32.0/usage/metrics/."""
    labels = f'engine="{engine}",model_name="owner/name"'
    spec = "vllm:spec_decode_num"
    lines = [
        "# HELP python_info Python platform information.",
        'python_info{implementation="CPython",major="3"} 1.0',
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {float(counted.running)}",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{{{labels}}} {float(counted.tokens)}",
        f"vllm:generation_tokens_created{{{labels}}} 1.7634e+09",
        f"{spec}_drafts_total{{{labels}}} {float(counted.rounds)}",
        f"{spec}_draft_tokens_total{{{labels}}} {float(counted.drafted)}",
        f"{spec}_accepted_tokens_total{{{labels}}} {float(counted.accepted)}",
        *(
            f'{spec}_accepted_tokens_per_pos_total{{{labels},position="{place}"}} {float(accepted)}'
            for place, accepted in enumerate(counted.places)
        ),
    ]
    return "\n".join(lines) + "\n"


BEFORE = Counters(100, 300, 180, (90, 60, 30), 5000)

#: COUNTED's four tokens, written in two rounds.
AFTER = Counters(102, 306, 182, (92, 60, 30), 5004)


def one_after_another(*texts: str) -> Callable[[], Metrics]:
    answers = iter([(200, PLAIN_TEXT, text.encode()) for text in texts])
    return lambda: next(answers)


def served_with(metrics: Callable[[], Metrics]) -> tuple[Score, Script, Scoreboard]:
    script = Script(said(*COUNTED), metrics=metrics)
    with scripted(script) as address:
        events, board = raced("kv", f"@{address}")
    record = recorded(REQUEST, board.columns, FAKE, events)
    assert served(board_of(from_bytes(as_bytes(record))).scores[1]) == served(board.scores[1])
    return board.scores[1], script, board


def asked_for_metrics(script: Script) -> int:
    return sum(path == "/metrics" for path, _ in script.gets)


def test_what_a_server_counted_around_a_request_is_the_requests() -> None:
    score, script, _ = served_with(one_after_another(vllm(BEFORE), vllm(AFTER)))
    assert (score.drafted, score.accepted) == (6, 2)
    assert served(score).endswith("; its counters show 2.00 tokens per pass")
    assert score.positions == [(2, 2), (2, 0), (2, 0)]
    assert asked_for_metrics(script) == 2
    assert [each.name for each in leading(score)] == ["rate", "accepted"]
    assert all(each.value(score, score) is not None for each in leading(score))


@pytest.mark.parametrize(
    "after",
    [replace(AFTER, tokens=5005), replace(AFTER, tokens=5000), replace(AFTER, running=2)],
    ids=["more tokens", "fewer tokens", "two requests"],
)
def test_what_others_used_too_is_the_servers(after: Counters) -> None:
    score, *_ = served_with(one_after_another(vllm(BEFORE), vllm(after)))
    assert (score.drafted, score.accepted) == (0, 0), "nobody knows which of them are its own"
    assert "others used it too" in served(score)
    assert "2 of 6 drafted tokens accepted, 2.00 tokens per pass" in served(score)


def test_engines_are_added_up() -> None:
    text = vllm(BEFORE) + vllm(replace(AFTER, running=1, places=(7,)), engine=1)
    assert read_counters(text) == Counters(202, 606, 362, (97, 60, 30), 10004, 1, 0.0, known=True)


def test_llama_cpps_counters_have_vllms_names() -> None:
    """As llama.cpp b10519 writes them with --metrics."""
    text = (
        vllm(AFTER)
        .replace("vllm:generation_tokens_total", "llamacpp:tokens_predicted_total")
        .replace("vllm:num_requests_running", "llamacpp:requests_processing")
        .replace("vllm:", "llamacpp:")
    )
    assert read_counters(text) == replace(AFTER, known=True)


def test_sglangs_average_is_nobodys() -> None:
    """As SGLang 0.5 writes it with --enable-metrics; the gauge is of the server's last batches:
    https://docs.sglang.io/references/production_metrics.html.
    """
    text = 'sglang:spec_accept_length{{model_name="owner/name",tp_rank="0"}} {}\n'
    before, after = text.format(3.1), text.format(2.9)
    score, *_ = served_with(one_after_another(before, after))
    assert (score.drafted, score.accepted) == (0, 0)
    assert "its recent passes wrote 2.90 tokens each, for all users" in served(score)


def test_a_server_that_started_anew_tells_nothing() -> None:
    score, *_ = served_with(one_after_another(vllm(AFTER), vllm(BEFORE)))
    assert "counters" not in served(score)
    assert score.drafted == 0


def test_counters_are_asked_for_only_where_they_are_of_use() -> None:
    for messages, texts in (
        (LLAMA_CPP, [vllm(BEFORE)]),  # which tells of each message
        (VLLM, [vllm(BEFORE)]),  # which tells of the request at its end
        (PLAIN, ["up 1\n"]),  # which counts nothing of drafts
    ):
        script = Script(said(*messages), metrics=one_after_another(*texts))
        with scripted(script) as address:
            _, board = raced(f"@{address}")
        assert board.scores[0].state == "done"
        assert asked_for_metrics(script) == 1


BAD: dict[str, Metrics] = {
    "not there": (404, PLAIN_TEXT, vllm(AFTER).encode()),
    "a page": (200, "text/html", vllm(AFTER).encode()),
    "elsewhere": (302, PLAIN_TEXT, vllm(AFTER).encode()),
    "ten megabytes": (200, PLAIN_TEXT, vllm(AFTER).encode() + b"#" * (10 << 20)),
    "garbage": (200, PLAIN_TEXT, vllm(AFTER).encode() + b"vllm:generation_tokens_total{a=\xff 1"),
    "no numbers": (200, PLAIN_TEXT, vllm(AFTER).replace("6.0", "NaN").encode()),
    "cut": (200, PLAIN_TEXT, vllm(AFTER).encode()[:300]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_metrics_change_nothing(name: str) -> None:
    without, *_ = served_with(lambda: (404, "text/plain", b""))
    first = iter([(200, PLAIN_TEXT, vllm(BEFORE).encode())])
    for metrics in (lambda: BAD[name], lambda: next(first, BAD[name])):
        score, *_ = served_with(metrics)
        assert score.state == "done"
        assert score.text == without.text
        assert "counters" not in served(score)


def test_metrics_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_PATIENCE", 0.2)
    never = threading.Event()

    def silent() -> Metrics:
        never.wait()
        return (200, PLAIN_TEXT, b"")

    score, *_ = served_with(silent)
    never.set()
    assert (score.state, score.text) == ("done", "One two three")


def test_a_key_goes_to_the_metrics_of_its_own_server(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(said(*COUNTED), metrics=one_after_another(vllm(BEFORE), vllm(AFTER)))
    with scripted(script) as address:
        path = tmp_path / "servers.toml"  # pyright: ignore[reportOperatorIssue]
        path.write_text(f'[mine]\nurl = "{address}/behind/v1"\nkey = "sk-hush"\n')
        monkeypatch.setenv(VARIABLE, str(path))
        raced("@mine")
    assert [get for get in script.gets if "metrics" in get[0]] == [
        ("/behind/metrics", "Bearer sk-hush")
    ] * 2


@given(
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.sampled_from([*counters._NAMES, "other"]),
            st.sampled_from(["", " ", '{position="3"}', '{position="x"}', "{", "{}", '{a="']),
            st.text(max_size=8) | st.floats().map(" {}".format),
        ),
        max_size=6,
    ).map("\n".join)
)
def test_any_text_is_counters_or_none(text: str) -> None:
    found = NOTHING
    with suppress(ValueError):
        found = read_counters(text)
    assert min(found.rounds, found.drafted, found.accepted, found.tokens, *found.places, 0) == 0
    again = found.since(found)
    assert (again.rounds, again.drafted, again.accepted, again.tokens) == (0, 0, 0, 0)
