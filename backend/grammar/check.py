"""Tries untrusted grammars and texts in a child process, which may loop, use up memory or crash.

llguidance and the validator are native code: they cannot be interrupted, and an abort ends their
whole process. The child, `python -m backend.grammar.check`, answers one JSON line and ends. It
imports nothing heavy and reads grammars over bytes, so that this takes 0.2 s for any model.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.errors import DerbyError, check_range
from backend.grammar.compile import compile_matcher, definition_of, refusal, too_much
from backend.grammar.judge import Judgement, judge
from backend.grammar.sources import GrammarSource
from backend.grammar.vocabulary import build
from backend.processes import die_with_parent, from_lasting_thread
from backend.text import ByteTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Seconds of processor time and bytes of memory that one grammar, or the check of a text, may take.
DEADLINE = 5.0
MEMORY = 1 << 30
#: Seconds that a busy machine may add.
PATIENCE = 60.0
#: Seconds between two looks at whether the answer is still wanted.
LOOK = 0.05
#: Longest text that is tried, in characters.
MAX_TEXT = 16 * 1024
#: Bytes that a walk through a grammar goes, to meet states that explode only after a while.
PROBE = 64
_ROOT = Path(__file__).resolve().parents[2]


class CheckFailedError(DerbyError):
    """Nothing was found out: another time the grammar may be found good."""


class StoppedError(CheckFailedError):
    """The answer was not wanted any more."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The first `accepted` characters of a text begin a text of the grammar; if that is all of it,
    it may end there if `accepting`.
    """

    accepted: int
    accepting: bool


def never() -> bool:
    """Whether an answer is not wanted any more: it always is."""
    return False


def check(
    source: GrammarSource,
    text: str = "",
    deadline: float = DEADLINE,
    stopped: Callable[[], bool] = never,
) -> Fit:
    """How far `text` fits a grammar. Raises DerbyError if the grammar does not compile within
    `deadline` in seconds of processor time, StoppedError once `stopped()` is true.
    """
    check_range("text length", len(text), 0, MAX_TEXT)
    reply = _ask({"definition": definition_of(source), "text": text}, deadline, stopped)
    if "error" in reply:
        raise refusal(source, reply["error"])
    return Fit(**reply)


def verdict(source: GrammarSource, text: str, deadline: float) -> str:
    """How far `text` fits a grammar that works, in words. Raises DerbyError as `check`."""
    fit = check(source, text, deadline)
    if fit.accepted < len(text):
        return (
            f"It works. Accepted up to character {fit.accepted} of {len(text)}; "
            f"{text[fit.accepted]!r} cannot follow."
        )
    what = "The whole text fits" if text else "Nothing has been written yet"
    return f"It works. {what}, and it may {'' if fit.accepting else 'not '}end here."


def judge_apart(
    schema: str, text: str, deadline: float = DEADLINE, stopped: Callable[[], bool] = never
) -> Judgement:
    """Judge `text` under a JSON Schema. Raises nothing that the two can cause."""
    try:
        return Judgement(**_ask({"schema": schema, "text": text}, deadline, stopped))
    except DerbyError as error:
        return Judgement("unchecked", str(error).rstrip("."))


def _ask(request: dict[str, Any], deadline: float, stopped: Callable[[], bool]) -> dict[str, Any]:
    """The child's reply."""
    child = from_lasting_thread(
        lambda: subprocess.Popen(
            [sys.executable, "-m", "backend.grammar.check"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    )
    line, answer = json.dumps(request | {"deadline": deadline}).encode(), list[bytes]()
    talk = threading.Thread(target=lambda: answer.append(child.communicate(line)[0]), daemon=True)
    talk.start()
    latest = time.monotonic() + deadline + PATIENCE
    while talk.is_alive() and not stopped() and time.monotonic() < latest:
        talk.join(LOOK)
    if talk.is_alive():
        child.kill()
        talk.join()
        if stopped():
            raise StoppedError("Stopped.")
    if child.returncode == 0:
        return json.loads(answer[0])
    if child.returncode == -getattr(signal, "SIGKILL", 9):  # no native code's own doing
        raise CheckFailedError("The check of the grammar was killed: try again.")
    raise too_much()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    if "schema" in request:
        return asdict(judge(request["schema"], request["text"]))
    matcher = compile_matcher(request["definition"], build(ByteTokenizer(), ()).tokens)
    if error := matcher.get_error() or _probe(matcher.deep_copy()):
        return {"error": "no text fits it" if error.startswith("NoExtension") else error}
    accepted = 0
    for character in request["text"]:
        spelled = character.encode(errors="replace")
        if matcher.try_consume_tokens(list(spelled)) != len(spelled):
            break
        accepted += 1
    return asdict(Fit(accepted, matcher.is_accepting()))


def _probe(matcher: LLMatcher) -> str:
    """Walk at random, always in the same way; the error at which the matcher failed at its first
    step, or of another kind than a dead end later, else "".
    """
    rng = random.Random(0)
    for step in range(PROBE):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            error = matcher.get_error()
            return "" if step and error.startswith("NoExtension") else error
        allowed = [byte for byte in range(256) if bits >> byte & 1]
        if not allowed:
            return "" if step or bits else "NoExtension"
        matcher.try_consume_tokens([rng.choice(allowed)])
    return ""


def _limit(seconds: float) -> None:
    """Die by SIGPROF after so much processor time: wall-clock time would blame a grammar for a busy
    machine. Allow MEMORY above what is in use, and no core dumps.
    """
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        signal.setitimer(signal.ITIMER_PROF, seconds)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def main() -> None:
    """Answer the request in standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with_parent()
    request = json.loads(sys.stdin.buffer.read())
    answer = os.dup(1)
    os.dup2(2, 1)  # whatever native code prints is no part of the answer
    _limit(request["deadline"])
    os.write(answer, json.dumps(_answer(request)).encode())


if __name__ == "__main__":
    main()
