"""What a race's result is put into words, where test_agreement.py does not say it: the only test of
their words.
"""

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from scoreboards import LONG, LONG_PAIRS, again, board_of, started, step, written

from backend.events import (
    Conditions,
    Decided,
    Event,
    Failed,
    Fed,
    Finished,
    Judged,
    Prefilled,
    Served,
    Step,
)
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import doubt, headline, mark, outcome, reasons, state, why
from backend.types import ModelSpec

BF16 = asdict(ModelSpec(engine="torch", precision="bf16"))

KV, PAIRS = written(0, LONG, 0.1), written(1, LONG_PAIRS, 0.1)
EQUAL, SLOW = written(1, LONG, 0.1), written(1, LONG, 0.2)
QUIET = Conditions(0.0)
WON = [*KV, *PAIRS, QUIET]
CHANGED = [*PAIRS[:3], step(1, [7, 8], 0.1), *PAIRS[4:]]
SHORT = [*written(0, LONG[:6], 0.1), *written(1, LONG[:6], 0.2), QUIET]
ROUNDED = [started(0, **BF16), *KV[1:], started(1, **BF16), *CHANGED[1:]]
FORCED = [
    replace(event, origins=["forced", "bonus"], drafted=0)
    if isinstance(event, Step) and event.drafted
    else event
    for event in PAIRS
]
CUT = [*PAIRS[:-1], Finished(1, "token limit", [], "a brace"), Judged(1, "invalid", "no date")]
NO_GUESS = Decided(1, {}, "no guess pays", ["a draft is slow"], plain=True)
SHORT_DRAFT = Decided(1, {}, "", ["a draft is short"])
AT_ONCE = [started(1), step(1, [1, 2], 1.0), Finished(1, "end of text", [])]
FAILED = [*KV, *PAIRS, Failed(2, "No.")]
NOTED = [
    replace(started(0), notes=["a"]),
    *KV[1:],
    replace(started(1), notes=["a", "b"], prompt_tokens=6),
    *PAIRS[1:],
]
PROGRAM: list[Event] = [
    event
    for i in (0, 1)
    for event in (started(i), Fed(i, [["fixed", "given: "]], 0.01), step(i, [1], 0.1))
]

GENAI = "kv openvino_genai:lookup=4"
SAME = "All texts are identical."
NONE = "No column with the same text was measurably faster than KV reuse."
TOO_SHORT = "It was too short to compare speeds: that takes 20 tokens, 0.32 s and 8 passes of each"
TURNS = "Columns take turns; each is timed only while it computes."
SECOND = "Server wrote 10.0 tokens/s; to compare, add a second server (@http://...)."
NO_PLAIN = "no plain column ran, so there are no speed-ups"
BUSY = "Speeds may be off: other programs used 30% of the machine."
TWICE = "2.00* the tokens per pass / 1.00* the time = 2.00*"
HALF = "1.00* the tokens per pass / 2.00* the time = 0.50*; each pass computes the whole text again"
GUESSED = f"{TWICE}; 100% of its guesses were accepted (by position 100%)"
ONE_RUN = "timed in 1 run while the others waited, so its speed-up has no interval"
FAR_RUN = ONE_RUN.replace("timed", "timed over the network")
TWO_RUNS = "it did what llama.cpp #1 does; timed in 2 runs while the others waited"
DIFFERS = "differs from KV reuse at token 4 (scores 1 apart)"
INVALID = "not valid against its schema: no date; the grammar still expects a brace"


def reasons_of(board: Scoreboard) -> str:
    return " ".join(reasons(board, result_of(board)))


def of_race(words: Callable[..., str]) -> Callable[[Scoreboard], str]:
    return lambda board: words(board, result_of(board))


def of_column(words: Callable[..., str]) -> Callable[[Scoreboard], str]:
    return lambda board: words(board, result_of(board).rows[1])


WORDS = {
    "headline": of_race(headline),
    "doubt": of_race(doubt),
    "reasons": reasons_of,
    "mark": of_column(mark),
    "outcome": of_column(outcome),
    "why": of_column(why),
    "state": lambda board: state(result_of(board).rows[1]),
}


Case = tuple[str, list[Event], str]

#: Columns, events and a sentence, in which "*" is a multiplication sign, "/" one of division.
CASES: dict[str, list[Case]] = {
    "headline": [
        ("kv @a", KV[:5], TURNS),
        ("kv lookup", [*KV, *SLOW, QUIET], f"{NONE} {SAME}"),
        ("kv", [*KV, QUIET], "KV reuse wrote 10.0 tokens/s."),
        ("@http://a", [*KV, QUIET], SECOND),
        ("lookup lookup", WON, f"Prompt lookup #2 wrote 20.0 tokens/s; {NO_PLAIN}. {SAME}"),
        ("kv lookup", SHORT, f"{TOO_SHORT} column. {SAME}"),
    ],
    "doubt": [("kv lookup", [*WON, Conditions(0.3)], BUSY)],
    "mark": [
        ("kv lookup", [*WON, Judged(1, "invalid", "no date")], "not valid"),
        ("kv lookup", [*WON, Judged(1, "unchecked", "a pattern")], "not checked"),
        ("kv kv:grammar=date", [*KV, *CHANGED], "different text"),
    ],
    "state": [
        ("kv lookup", [started(1), Prefilled(1, 3, 0.1)], "reading 3 of 5 tokens"),
        ("kv stateless", [*KV, Finished(1, "photo finish", [])], "cut at finish"),
    ],
    "outcome": [
        ("kv lookup", [*KV, *CHANGED], DIFFERS),
        ("kv lookup", ROUNDED, f"{DIFFERS}: bf16 rounds differently in wide passes"),
        ("kv kv:grammar=person", [*KV, *CUT], f"identical to KV reuse (61 tokens); {INVALID}"),
    ],
    "why": [
        ("kv lookup", [*WON, SHORT_DRAFT], f"{GUESSED}; a draft is short"),
        ("kv lookup", [*KV, NO_GUESS, *EQUAL], "a draft is slow; it did what KV reuse does"),
        ("kv lookup:grammar=date", [*KV, *FORCED], f"{TWICE}; its grammar forced 30 tokens"),
        ("kv stateless", [*KV, *SLOW], HALF),
        ("llamacpp llamacpp", [*KV, *EQUAL, again(1, LONG, 0.2)], TWO_RUNS),
        (GENAI, [*KV, Served(1, "network"), *PAIRS], f"{GUESSED}; {FAR_RUN}"),
        ("kv @a", [*KV, *AT_ONCE], f"its whole text came at its end; {ONE_RUN}"),
        (GENAI, NOTED, f"{GUESSED}; {ONE_RUN}; b; it read 6 prompt tokens, KV reuse 5"),
        ("kv lookup", PROGRAM, "it computed 1 token in 1 pass"),
    ],
    "reasons": [("kv lookup stateless", FAILED, f"Prompt lookup: {GUESSED}. Stateless: No.")],
}


@pytest.mark.parametrize(
    ("words", "names", "events", "sentence"),
    [(words, *case) for words, cases in CASES.items() for case in cases],
)
def test_a_result_in_words(words: str, names: str, events: list[Event], sentence: str) -> None:
    signs = {"*": "\N{MULTIPLICATION SIGN}", "/": "\N{DIVISION SIGN}"}
    written_out = WORDS[words](board_of(names, *events))
    assert written_out in (sentence, sentence.translate(str.maketrans(signs)))
