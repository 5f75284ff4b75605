"""A race puts strategies, engines and grammars together: every column ends once, the lossless ones
agree, and one column's error, stop or end stays in its column. A column that is stopped shows all
that it has written; one that its JSON Schema lets end is judged, on nobody's clock; a machine that
others use says so.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from chat_model import make
from hypothesis import given, settings
from hypothesis import strategies as st
from race_runs import FAKE, board_after, ends, events_of, run_solo, until

from backend.decoding.seams import Decision, Drafter
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import (
    Conditions,
    Decided,
    Event,
    Failed,
    Finished,
    Judged,
    Prepared,
    Preparing,
    Started,
    Step,
)
from backend.grammar.sources import GrammarSource
from backend.racing.ledger import Ledger
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.result import progress_of, result_of
from backend.results.scoreboard import Score, Scoreboard
from backend.results.texts import texts_of
from backend.strategies import registry
from backend.strategies.column import Column, default_column, parse_column
from backend.strategies.declaration import Strategy
from backend.strategies.registry import DEFAULT_COLUMNS
from backend.types import ModelSpec, Outcome, Request, Sampling

REQUEST = Request("Who is it?", max_new_tokens=60)
COLUMNS = tuple(map(parse_column, DEFAULT_COLUMNS))


class Loaded(LoadedModels):
    """Models that are at hand already."""

    def __init__(self, engines: dict[str, FakeEngine]) -> None:
        super().__init__()
        self.engines = engines

    def get(self, spec: ModelSpec, say: Callable[[str], None]) -> FakeEngine:
        say(f"Loading {spec.name}...")
        if spec.name not in self.engines:
            raise DerbyError(f"There is no {spec.name}.")
        return self.engines[spec.name]


def loaded(**changes: Any) -> Loaded:
    return Loaded({"fake": FakeEngine(**changes)})


def raced(
    columns: Sequence[Column],
    engines: LoadedModels | None = None,
    request: Request = REQUEST,
    stop_after: int = 10**9,
) -> tuple[list[Event], Scoreboard]:
    events: list[Event] = []
    race = Race(request, tuple(columns), FAKE)
    race.run(engines or LoadedModels(), events.append, lambda: len(events) >= stop_after)
    return events, board_after(columns, events)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_default_columns_run_to_the_end_and_the_lossless_ones_agree(temperature: float) -> None:
    engines = loaded()
    request = Request("Who?", max_new_tokens=60, sampling=Sampling(temperature, seed=5))
    events, board = raced([*COLUMNS, default_column("lookup")], engines, request)
    assert [score.state for score in board.scores] == ["done"] * 6
    assert sorted(ends(events)) == [*range(6)]
    for index in (0, 2, 3, 5):
        text = texts_of(board)[index]
        assert (text.like, text.sameness in ("same", "so far")) == (1, True), "that of KV reuse"
    grammar = board.scores[4]
    assert grammar.text.lstrip().startswith("{"), "the grammar column writes JSON"
    compiled = [event for event in events if isinstance(event, Prepared)]
    assert [(event.column, event.reused) for event in compiled] == [(4, 0)]
    assert grammar.ttft >= compiled[0].seconds > 0, "compiling counts on its own clock alone"
    assert engines.engines["fake"].open_sessions == 0


LONG = "x" * 1000
LENGTH = len(f"User: {LONG}\nAnswer: ")


@pytest.mark.parametrize("own_limit", [0, LENGTH], ids=["the model's", "the request's"])
def test_a_prompt_beyond_the_context_is_refused_before_it_is_read(own_limit: int) -> None:
    request = Request(LONG, max_new_tokens=60, context=own_limit)
    engines = loaded(max_context=4096 if own_limit else LENGTH)
    _, board = raced(list(map(default_column, ("kv", "stateless"))), engines, request)
    assert [score.state for score in board.scores] == ["failed"] * 2
    assert all("about 10 tokens" in score.message for score in board.scores)
    assert engines.engines["fake"].forwards == 0


@pytest.mark.parametrize("room", [1, 2, 30, 59, 60])
def test_all_columns_write_until_the_context_is_full_for_one_of_them(room: int) -> None:
    """Lookahead's window reaches past it and is left out there; a draft that reads less than its
    target guesses no more, and writes on.
    """
    plain = raced([default_column("kv")], loaded(), Request(LONG, max_new_tokens=60))[1].scores[0]
    assert len(plain.tokens) == 60
    names = ("lookup", "speculative:draft=fake", "kv", "lookahead", "speculative:draft=near")
    columns = [*map(parse_column, names), default_column("stateless")]
    engines = loaded(max_context=LENGTH + room)
    engines.engines["near"] = FakeEngine(salt=3, max_context=LENGTH + room // 2)
    for score in raced(columns, engines, Request(LONG, max_new_tokens=60))[1].scores:
        assert score.tokens == plain.tokens[:room] or score.reason == "photo finish"
        assert score.reason in ("token limit" if room == 60 else "context full", "photo finish")
    assert engines.engines["fake"].open_sessions == 0


def test_what_a_column_cannot_do_fails_it_alone() -> None:
    """A draft of another vocabulary, one that cannot take a guess back, no draft at all."""
    engines = loaded()
    engines.engines["other"] = other = FakeEngine(vocab_size=300)
    other.spec = ModelSpec("other", "fake")
    engines.engines["single"] = FakeEngine(guesses="none")
    drafts = [parse_column(f"speculative:draft={name}") for name in ("other", "single", "none")]
    _, board = raced([default_column("kv"), *drafts], engines)
    assert [score.state for score in board.scores] == ["done"] + ["failed"] * 3
    assert "other on fake" in board.scores[1].message
    assert "cannot take a guess back" in board.scores[2].message
    assert other.open_sessions == engines.engines["fake"].open_sessions == 0
    _, board = raced(COLUMNS, loaded(guesses="none"))
    for column, score in zip(board.columns, board.scores, strict=True):
        assert score.state == ("failed" if column.strategy.guesses else "done")
    for target in (ModelSpec("nothing", "fake"), ModelSpec("fake", "abacus")):
        events = events_of(Race(REQUEST, COLUMNS, target))
        assert sorted(ends(events)) == [*range(5)]
        assert all(isinstance(event, Failed) for event in ends(events).values())
        assert not any(isinstance(event, Started) for event in events)


class WithoutCopies(LoadedModels):
    def get(self, spec: ModelSpec, say: Callable[[str], None]) -> Any:
        if spec.precision == "int4":
            raise DerbyError("There is no room for a copy: choose a smaller model.")
        return super().get(spec, say)


def test_without_a_copy_of_the_target_to_draft_a_column_looks_up_and_says_why(
    tmp_path: Path,
) -> None:
    columns = tuple(map(parse_column, ("kv", "speculative:k=4")))
    race = Race(Request("a b a b a b", 30), columns, ModelSpec(str(make(tmp_path)), "torch"))
    events = events_of(race, WithoutCopies())
    plain, speculative = board_after(columns, events).scores
    assert speculative.tokens == plain.tokens
    assert speculative.decision.declined
    assert any("no room for a copy" in e.text for e in events if isinstance(e, Preparing))


def test_where_a_pass_checks_a_chain_alone_the_others_guess_chains() -> None:
    guessing = ("lookup:k=6,ngram=1", "speculative:draft=near,k=4")
    columns = [*COLUMNS, *map(parse_column, guessing)]
    engine = FakeEngine(period=2, sharpness=4.0, guesses="chains")
    _, board = raced(columns, Loaded({"fake": engine, "near": engine}), Request("Who?", 300))
    for column, score in zip(board.columns, board.scores, strict=True):
        assert score.state == ("failed" if column.name == "lookahead" else "done"), score.message
        if column.grammar is None and score.state == "done":
            assert score.tokens == board.scores[1].tokens[: len(score.tokens)]
    assert min(score.accepted for score in board.scores[-2:]) > 0


def test_a_model_is_loaded_on_its_column_s_turn_while_no_clock_runs() -> None:
    engines = loaded()
    engines.engines["near"] = FakeEngine(salt=3)
    columns = [default_column("kv"), parse_column("speculative:draft=near"), default_column("kv")]
    events, board = raced(columns, engines)
    order = [e if isinstance(e, Preparing) else getattr(e, "column", -1) for e in events]
    assert order.index(0) < order.index(Preparing("Loading near...")) < order.index(2)
    for score in board.scores:
        assert score.state == "done"
        steps = [e for e in events if isinstance(e, Step) and e.column == board.scores.index(score)]
        assert score.seconds == pytest.approx(sum(step.seconds["total"] for step in steps))


@pytest.mark.parametrize("stop_after", [*range(0, 24, 3), 30])
def test_a_stop_ends_every_column_and_releases_everything(stop_after: int) -> None:
    engines = loaded()
    events, board = raced(COLUMNS, engines, stop_after=stop_after)
    assert board.ended
    assert sum(isinstance(event, Finished) for event in events) == len(COLUMNS)
    assert engines.engines["fake"].open_sessions == 0


#: On a slow model, with a draft that costs nothing and is always right.
QUICK = "speculative:draft=fake,k=4"


@pytest.mark.parametrize("first", [None, 0], ids=["in turns", "alone"])
@pytest.mark.parametrize("others", [("kv", QUICK), ("lookup",)])
def test_stateless_ends_at_the_photo_finish_of_the_result(
    others: tuple[str, ...], first: int | None
) -> None:
    """It kept everybody waiting: the winner was there at 37 s, the end at 56. The finish is the
    result's, so without a plain column there is none.
    """
    columns = tuple(map(parse_column, ("stateless", *others)))
    slow = ModelSpec("fake-slow", "fake")
    events = events_of(Race(Request("Who?", 30), columns, slow, alone_from=first))
    board = board_after(columns, events)
    reason, *rest = (score.reason for score in board.scores)
    assert reason == ("photo finish" if others[0] == "kv" else "token limit")
    assert set(rest) <= {"token limit", "end of text"}
    result, steps = result_of(board), progress_of(board.scores[0], "token")
    if result.finished:
        assert (result.moment or 0.0) <= steps[-1].clock
        if first is not None:
            assert steps[-2].clock < (result.moment or 0.0), "not a step more"


def test_columns_may_run_alone_one_after_another_whichever_is_first() -> None:
    alone = events_of(Race(REQUEST, COLUMNS[1:4], FAKE, alone_from=1), loaded())
    order = [e.column for e in alone if isinstance(e, Started)]
    assert order == [1, 2, 0]
    seen = [e.column for e in alone if isinstance(e, Step)]
    assert seen == sorted(seen, key=order.index), "a column took turns with another"


LINE_UP = [
    "stateless",
    "kv",
    "speculative:draft=fake-draft,k=2",
    "lookup:k=3",
    "lookahead:window=5",
    "grammar:grammar=date",
]


@given(st.permutations(LINE_UP))
@settings(max_examples=20)
def test_the_order_of_a_line_up_changes_no_text_and_no_count(names: list[str]) -> None:
    """Behind Stateless, columns took over its passes as their own, and a draft failed."""
    columns, models = tuple(map(parse_column, names)), LoadedModels()
    race = Race(Request("Who is it? " * 7, 24), columns, FAKE)
    for index, score in enumerate(board_after(columns, events_of(race, models)).scores):
        alone = run_solo(race, index, models)
        if score.reason == "photo finish":
            assert score.tokens == alone.tokens[: score.length]
        else:
            assert (score.tokens, score.rows) == (alone.tokens, alone.rows)
            assert (score.drafted, score.accepted) == (alone.drafted, alone.accepted)


class Undecided(Drafter):
    """Decides something else in every third step, and sums up."""

    steps = 0

    def observe(self, outcome: Outcome) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            self.decision = Decision({"step": self.steps})

    def conclude(self) -> None:
        self.decision = Decision({"k": self.steps}, "why", ("this",))


def test_a_decision_comes_once_and_right_after_the_step_that_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = Strategy("undecided", "x", "x", build=lambda _: Undecided())
    known = dict(registry.strategies()) | {"undecided": strategy}
    monkeypatch.setattr("backend.strategies.column.strategies", lambda: known)
    events, _ = raced([parse_column("undecided"), parse_column("kv")])
    own = [event for event in events if getattr(event, "column", -1) == 0]
    decided = [(i, event) for i, event in enumerate(own) if isinstance(event, Decided)]
    *during, (last, final) = decided
    for i, event in during:
        assert event.settings == {"step": sum(isinstance(e, Step) for e in own[:i])}
        assert isinstance(own[i - 1], Step)
    assert len(during) == 60 // 3
    assert final == Decided(0, {"k": 60}, "why", ["this"])
    assert last == len(own) - 2
    assert not any(isinstance(event, Decided) and event.column == 1 for event in events)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_targets_roles_of_tokens_rule_in_a_draft(tmp_path: Path, temperature: float) -> None:
    """The draft of the target's own weights and vocabulary calls other tokens its ends."""
    target, draft = make(tmp_path / "target"), make(tmp_path / "draft")
    for file, changes in (
        ("config.json", {"eos_token_id": 70, "bos_token_id": 1}),
        ("generation_config.json", {"eos_token_id": 70, "bos_token_id": 1}),
        ("tokenizer_config.json", {"eos_token": "<|im_start|>", "bos_token": "<|im_end|>"}),
    ):
        path = draft / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    request = Request("Say a b c", 40, Sampling(temperature, seed=5))
    drafting = default_column("speculative").with_settings({"draft": str(draft), "auto": False})
    race = Race(request, (default_column("kv"), drafting), ModelSpec(str(target), "torch"))
    kv, speculative = board_after(race.columns, events_of(race)).scores
    assert kv.message == speculative.message == ""
    assert kv.tokens == speculative.tokens
    assert len(kv.tokens) == 40
    assert speculative.acceptance == 1.0, "the same weights guess right"


def stopped_after(models: LoadedModels, request: Request, name: str, tokens: int) -> Score:
    """The column, stopped once it had written so many tokens."""
    columns = (parse_column(name),)
    board = Scoreboard(columns)
    race = Race(request, columns, FAKE)
    race.run(models, board.add, lambda: board.scores[0].length >= tokens)
    return board.scores[0]


def test_a_stopped_program_shows_the_value_that_it_was_in() -> None:
    models, prompt = LoadedModels(), 'Name: {{gen "name" max_tokens=30 stop="%s"}}.'
    request = Request(prompt % "\N{SNOWMAN}", 40)
    value = str(stopped_after(models, request, "kv", 30).values["name"])
    stop = f"{value[3:20]}\N{SNOWMAN}"
    score = stopped_after(models, Request(prompt % stop, 40), "kv", 9)
    assert score.reason == "stopped"
    assert score.text == f"Name: {value[: score.length]}"
    assert score.values == {}


NAMES = {"type": "array", "items": {"enum": ["Ada", "Grace"]}, "minItems": 2, "maxItems": 2}


@pytest.mark.parametrize("words", ["kv:grammar=own", "lookup:grammar=own,k=3"])
def test_a_column_that_its_schema_lets_end_is_judged_once(words: str) -> None:
    """Also one that is complete at the token limit; and nothing before that."""
    column = parse_column(words, GrammarSource("json_schema", json.dumps(NAMES), "judged"))
    length = 200
    for more, reason in ((0, "end of text"), (0, "end of text"), (-1, "token limit")):
        events, board = raced([column], request=Request("Who?", length + more))
        score = board.scores[0]
        length = score.length
        assert score.reason == reason
        verdicts = [Judged(0, "valid", "")] if reason == "end of text" else []
        assert [event for event in events if isinstance(event, Judged)] == verdicts
        steps = sum(event.seconds["total"] for event in events if isinstance(event, Step))
        compiled = sum(event.seconds for event in events if isinstance(event, Prepared))
        assert score.seconds == pytest.approx(steps + compiled), "judging is on nobody's clock"
    events, _ = raced([parse_column(words.replace("own", "arithmetic"))])
    assert not any(isinstance(event, Judged) for event in events), "there is no schema"


BUSY = "import time\nwhile time.process_time() < 1: pass\n"

#: Is busy when it is first asked, and has nothing that anybody asks for.
SERVER = f"""
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    server.settimeout(60)
    while True:
        with server.accept()[0] as client:
            client.recv(65536)
            exec({BUSY!r})
            client.sendall(b"HTTP/1.1 404 Not Found\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""


def apart(program: str) -> psutil.Process:
    """A program that is left to itself, so that it is nobody's child any more."""
    start = ["sh", "-c", '"$0" -c "$1" > /dev/null & echo $!', sys.executable, program]
    return psutil.Process(int(subprocess.check_output(start)))


def busy() -> float:
    """Seconds that all processors have worked so far."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait


def test_children_and_named_servers_are_no_other_programs() -> None:
    """What ran in children, such as a library's server, was "other programs". A server belongs to
    the race that names it, though it was started elsewhere and is nobody's child here.
    """
    ledger, before, begun, cores = Ledger(), busy(), time.monotonic(), psutil.cpu_count() or 1
    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        child.wait()
    others = ledger.conditions().others * (time.monotonic() - begun) * cores
    assert busy() - before - others > 0.7
    server = apart(SERVER)
    try:
        until(lambda: server.net_connections("tcp"))
        at = f"@http://127.0.0.1:{server.net_connections('tcp')[0].laddr.port}"
        ledger, begun = Ledger(), time.monotonic()
        events = events_of(Race(REQUEST, (parse_column(at), parse_column("@nowhere")), FAKE))
        (named,) = [event.others for event in events if isinstance(event, Conditions)]
        unnamed = ledger.conditions().others
        assert (unnamed - named) * (time.monotonic() - begun) * cores > 0.7
        assert 0 < unnamed <= 1
    finally:
        server.kill()
