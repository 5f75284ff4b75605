"""Every sentence that a race's result is put into, in one table: the only test of their words."""

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
from scoreboards import LONG, LONG_PAIRS, SINGLE, again, board_of, started, step, written

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
    Started,
    Step,
)
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import beside, doubt, headline, mark, outcome, reasons, state, why
from backend.types import ModelSpec

BF16 = asdict(ModelSpec(engine="torch", precision="bf16"))
INT8 = asdict(ModelSpec(precision="int8"))
GGUF = asdict(ModelSpec(engine="llamacpp", precision="gguf"))

KV, PAIRS = written(0, LONG, 0.1), written(1, LONG_PAIRS, 0.1)
EQUAL, SLOW = written(1, LONG, 0.1), written(1, LONG, 0.2)
QUIET = Conditions(0.0)
WON = [*KV, *PAIRS, QUIET]
CHANGED = [*PAIRS[:3], step(1, [7, 8], 0.1), *PAIRS[4:]]
ROUNDED = [started(0, **BF16), *KV[1:], started(1, **BF16), *CHANGED[1:]]
GGUF_ROUNDED = [started(0, **GGUF), *KV[1:], started(1, **GGUF), *CHANGED[1:]]
FORCED = [
    replace(event, origins=["forced", "bonus"], drafted=0)
    if isinstance(event, Step) and event.drafted
    else event
    for event in PAIRS
]
STOPPED = [*KV[:42], *PAIRS[:32], *(Finished(i, "stopped", []) for i in (0, 1)), QUIET]
SHORT = [*written(0, SINGLE, 0.1), *written(1, SINGLE, 0.2), QUIET]
CUT = [*PAIRS[:-1], Finished(1, "token limit", [], "a brace"), Judged(1, "invalid", "no date")]
FAILED = [*WON, Failed(2, "No.")]
NO_GUESS = Decided(1, {}, "no guess pays", ["a draft is slow"], plain=True)
SHORT_DRAFT = Decided(1, {}, "", ["a draft is short"])
PROGRAM: list[Event] = [
    event
    for i in (0, 1)
    for event in (
        started(i),
        Fed(i, 5, [["fixed", "given: "]], 0.01),
        step(i, [1], 0.1),
        Finished(i, "end of program", []),
    )
]

NONE = "No column with the same text is measurably faster than KV reuse."
WINS = "Prompt lookup wins: 2.00* (1.97~2.03) as fast as KV reuse."
SAME = "All texts are identical."
FAR = f"{SAME[:-1]}, as far as each was written."
NOISE = "Too noisy to tell: other programs used 60% of the machine."
LEFT, LOUD = [*KV, Failed(1, "No."), QUIET], Conditions(0.6)
TWICE = "2.00* the tokens per pass / 1.00* the time = 2.00*"
ACCEPTED = "100% of its guesses were accepted (by position 100%)"

WHY_FAST = f"{TWICE}; {ACCEPTED}"
ONE_RUN = "timed in 1 run while the others waited, so its speed-up has no interval"


def noted(column: int, *notes: str) -> Started:
    return replace(started(column), notes=[*notes])


#: What a board is in words: the whole race, or its second column.
Words = Callable[[Scoreboard], str]


def of_race(words: Callable[..., str]) -> Words:
    return lambda board: words(board, result_of(board))


def of_column(words: Callable[..., str]) -> Words:
    return lambda board: words(board, result_of(board).rows[1])


def of_row(words: Callable[..., str]) -> Words:
    return lambda board: words(result_of(board).rows[1])


HEADLINE, DOUBT = of_race(headline), of_race(doubt)
REASONS = of_race(lambda board, result: " ".join(reasons(board, result)))
OUTCOME, WHY, MARK = of_column(outcome), of_column(why), of_column(mark)
BESIDE, STATE = of_row(beside), of_row(state)

#: In a sentence "*" is a multiplication sign, "/" one of division, and "~" a dash.
TABLE: list[tuple[Words, str, list[Event], str]] = [
    (HEADLINE, "kv lookup", KV[:5], "Columns take turns; each is timed only while it computes."),
    (HEADLINE, "kv lookup", [Failed(0, "No."), Failed(1, "No.")], "No."),
    (HEADLINE, "kv lookup", [Failed(0, "No."), Failed(1, "Never.")], "No column finished."),
    (HEADLINE, "kv lookup", WON, f"{WINS} {SAME}"),
    (HEADLINE, "kv lookup", STOPPED, f"Stopped early. {FAR}"),
    (HEADLINE, "kv lookup stateless", FAILED, f"Stateless failed. {WINS} {SAME}"),
    (HEADLINE, "kv lookup", [*KV, *SLOW, QUIET], f"{NONE} {SAME}"),
    (HEADLINE, "kv", [*KV, QUIET], "KV reuse wrote 10.0 tokens/s."),
    (
        HEADLINE,
        "@http://a",
        [*KV, QUIET],
        "Server wrote 10.0 tokens/s; to compare, add a second server (@http://...).",
    ),
    (HEADLINE, "kv lookup", LEFT, "Prompt lookup failed. KV reuse wrote 10.0 tokens/s."),
    (HEADLINE, "kv lookup", [*STOPPED, LOUD], f"Stopped early. {NOISE} {FAR}"),
    (HEADLINE, "kv lookup", [*KV, *PAIRS], SAME),
    (HEADLINE, "kv lookup", [*KV, *CHANGED, QUIET], f"{NONE} The text changed in Prompt lookup."),
    (HEADLINE, "kv lookup", SHORT, f"The race was too short to compare speeds. {SAME}"),
    (
        HEADLINE,
        "kv kv:grammar=date lookup",
        [*KV, *CHANGED, *written(2, LONG, 0.1), QUIET],
        f"{NONE} KV reuse (grammar=date) writes another text, by design; the others are identical.",
    ),
    (
        HEADLINE,
        "lookup lookup:k=2",
        WON,
        (
            "Prompt lookup (k=2) wrote 20.0 tokens/s; no plain column ran, so there are no "
            f"speed-ups. {SAME}"
        ),
    ),
    (
        HEADLINE,
        "kv lookup",
        [*WON, LOUD],
        f"{NOISE} {SAME}",
    ),
    (
        DOUBT,
        "kv lookup",
        [*WON, Conditions(0.3)],
        "Speeds may be off: other programs used 30% of the machine.",
    ),
    (REASONS, "kv lookup stateless", FAILED, f"Prompt lookup: {TWICE}; {ACCEPTED}. Stateless: No."),
    (MARK, "kv lookup", WON, "same text as KV reuse"),
    (MARK, "kv lookup", WON[:70], "same so far as KV reuse"),
    (MARK, "kv lookup", [*WON, Judged(1, "invalid", "no date")], "not valid"),
    (MARK, "kv lookup", [*WON, Judged(1, "unchecked", "a pattern")], "not checked"),
    (MARK, "kv kv:grammar=date", [*KV, *CHANGED], "different text"),
    (BESIDE, "kv lookup", WON, "20.0 against 10.0 tokens/s"),
    (STATE, "kv lookup", [started(1), Prefilled(1, 3, 5, 0.1)], "reading 3 of 5 tokens"),
    (STATE, "kv stateless", [*KV, Finished(1, "photo finish", [])], "cut at finish"),
    (OUTCOME, "kv lookup", WON, "identical to KV reuse (61 tokens)"),
    (
        OUTCOME,
        "kv lookup",
        [*KV, *CHANGED],
        "differs from KV reuse at token 4 (scores 1 apart)",
    ),
    (
        OUTCOME,
        "kv@torch/bf16 lookup@torch/bf16",
        ROUNDED,
        "differs from KV reuse at token 4 (scores 1 apart): bf16 rounds differently in wide passes",
    ),
    (
        OUTCOME,
        "llamacpp llamacpp:spec=ngram-simple",
        GGUF_ROUNDED,
        (
            "differs from llama.cpp at token 4 (scores 1 apart): gguf rounds differently in wide "
            "passes"
        ),
    ),
    (
        OUTCOME,
        "kv kv@int8",
        [*KV, started(1, **INT8), *CHANGED[1:]],
        "differs from KV reuse at token 4",
    ),
    (
        OUTCOME,
        "kv lookup",
        [*KV, replace(started(1), tokenizer="another"), *PAIRS[1:]],
        "identical to KV reuse (61 characters)",
    ),
    (
        OUTCOME,
        "kv kv:grammar=person",
        [*KV, *CUT],
        (
            "identical to KV reuse (61 tokens); not valid against its schema: no date; the grammar "
            "still expects a brace"
        ),
    ),
    (WHY, "kv lookup", WON, f"{TWICE}; {ACCEPTED}"),
    (WHY, "kv lookup:grammar=date", [*KV, *FORCED], f"{TWICE}; its grammar forced 30 tokens"),
    (
        WHY,
        "kv stateless",
        [*KV, *SLOW],
        (
            "1.00* the tokens per pass / 2.00* the time = 0.50*; each pass computes the whole text "
            "again"
        ),
    ),
    (WHY, "kv kv", [*KV, *EQUAL], "it did what KV reuse #1 does"),
    (
        WHY,
        "llamacpp llamacpp",
        [started(0, **GGUF), *KV[1:], started(1, **GGUF), *EQUAL[1:], again(1, LONG, 0.2)],
        "it did what llama.cpp #1 does; timed in 2 runs while the others waited",
    ),
    (WHY, "kv lookup", [*KV, NO_GUESS, *EQUAL], "a draft is slow; it did what KV reuse does"),
    (
        WHY,
        "kv openvino_genai:lookup=4",
        [*WON, again(1, LONG_PAIRS, 0.1)],
        f"{TWICE}; {ACCEPTED}; timed in 2 runs while the others waited",
    ),
    (
        WHY,
        "kv openvino_genai:lookup=4",
        WON,
        f"{TWICE}; {ACCEPTED}; {ONE_RUN}",
    ),
    (
        WHY,
        "kv @a",
        [*KV, replace(started(1), spec={}), Served(1, "network"), *PAIRS[1:]],
        f"{TWICE}; {ACCEPTED}; {ONE_RUN.replace('timed', 'timed over the network')}",
    ),
    (WHY, "kv lookup", [*WON, SHORT_DRAFT], f"{TWICE}; {ACCEPTED}; a draft is short"),
    (
        WHY,
        "kv llamacpp:spec=ngram-simple",
        [noted(0, "a"), *KV[1:], replace(noted(1, "a", "b"), prompt_tokens=6), *PAIRS[1:]],
        f"{TWICE}; {ACCEPTED}; {ONE_RUN}; b; it read 6 prompt tokens, KV reuse 5",
    ),
    (
        REASONS,
        "kv lookup",
        [noted(0, "a"), *KV[1:], *PAIRS],
        f"Prompt lookup: {WHY_FAST}. KV reuse: a.",
    ),
    (WHY, "kv lookup", PROGRAM, "it computed 1 token in 1 pass"),
]

SIGNS = str.maketrans(
    {"*": "\N{MULTIPLICATION SIGN}", "/": "\N{DIVISION SIGN}", "~": "\N{EN DASH}"}
)


@pytest.mark.parametrize(("words", "names", "events", "sentence"), TABLE)
def test_a_result_in_words(words: Words, names: str, events: list[Event], sentence: str) -> None:
    written_out = words(board_of(names, *events))
    assert written_out in (sentence, sentence.translate(SIGNS))
