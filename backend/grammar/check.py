"""Tries untrusted grammars and texts in a child process, which may loop, use up memory or crash.

llguidance and the validator are native code: they cannot be interrupted, and an abort ends their
whole process. The child, `python -m backend.grammar.check`, answers one JSON line and ends, after
some seconds of processor time at the latest, whatever became of its parent. It imports nothing
heavy and reads grammars over bytes, so that this takes 0.2 s for any model.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from backend.errors import DerbyError, check_range
from backend.grammar.schema import Judgement, Verdict, judge
from backend.grammar.sources import GrammarSource, definition_of, refusal
from backend.grammar.vocabulary import compile_matcher, vocabulary_of
from backend.tokenizer import ByteTokenizer

#: Seconds of processor time and bytes of memory that one grammar, or the check of a text, may take.
DEADLINE = 5.0
MEMORY = 1 << 30
#: Seconds that it may take on a busy machine.
PATIENCE = 60.0
#: Longest text that is tried, in characters.
MAX_TEXT = 16 * 1024
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Fit:
    """The first `accepted` characters of a text begin a text of the grammar; if that is all of it,
    it may end there if `accepting`. Of a JSON Schema: how the judge finds the text and `why`, and
    what the grammar does not enforce, in llguidance's words.
    """

    accepted: int
    accepting: bool
    verdict: Verdict | None = None
    why: str = ""
    afterwards: str = ""

    def covers(self, text: str) -> bool:
        """Whether that text is one of the grammar's, and known to be valid."""
        return self.accepted == len(text) and self.accepting and self.verdict in (None, "valid")

    def sentence(self, text: str) -> str:
        """How far that text fits a grammar that works."""
        words = list[str]()
        if self.accepted < len(text):
            at, size = self.accepted, len(text)
            words.append(f"Accepted up to character {at} of {size}; {text[at]!r} cannot follow.")
            if self.verdict == "valid":
                words.append(
                    "By the schema the text is valid, but a grammar takes properties in the "
                    "schema's order alone, and one form of each value."
                )
        elif text and not self.accepting:
            words.append("The text fits so far, and it may not end here.")
        elif text and not self.covers(text):
            what = "valid" if self.verdict == "invalid" else "checked"
            words.append(f"The grammar takes the whole text, but it is not {what}: {self.why}.")
        else:
            words.append("It works.")
            if text:
                words.append("The whole text fits, and it may end here.")
        if self.afterwards:
            words.append(f"Left to the judge of the whole text: {self.afterwards}.")
        return " ".join(words)


def check(source: GrammarSource, text: str = "", deadline: float = DEADLINE) -> Fit:
    """How far `text` fits a grammar. Raises DerbyError if the grammar does not compile within
    `deadline` in seconds of processor time.
    """
    check_range("text length", len(text), 0, MAX_TEXT)
    return Fit(**_reply({"grammar": asdict(source), "text": text, "deadline": deadline}))


def judge_apart(schema: str, text: str, deadline: float = DEADLINE) -> Judgement:
    """Judge `text` under a JSON Schema. Raises nothing that the two can cause."""
    try:
        return Judgement(**_reply({"schema": schema, "text": text, "deadline": deadline}))
    except DerbyError as error:
        return Judgement("unchecked", str(error).rstrip("."))


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    """The child's reply. Raises DerbyError for what is wrong, and if nothing was found out."""
    reply = _child_reply(json.dumps(request))
    if "wrong" in reply:
        raise DerbyError(reply["wrong"])
    return reply


@lru_cache(maxsize=64)
def _child_reply(request: str) -> dict[str, Any]:
    """Remembered, what is wrong too: columns of one race share a grammar."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "backend.grammar.check"],
            check=False,
            cwd=_ROOT,
            input=request.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise DerbyError("The check of the grammar was not done in time: try again.") from error
    if child.returncode == 0:
        return json.loads(child.stdout)
    if child.returncode == -getattr(signal, "SIGKILL", 9):  # no native code's own doing
        raise DerbyError("The check of the grammar was killed: try again.")
    return {
        "wrong": "The grammar takes too much time or memory: simplify it, and give every rule a "
        "way to end."
    }


def _evaluate(request: dict[str, Any]) -> dict[str, Any]:
    if "schema" in request:
        return asdict(judge(request["schema"], request["text"]))
    try:
        return asdict(_fit(GrammarSource(**request["grammar"]), request["text"]))
    except DerbyError as error:
        return {"wrong": str(error)}


def _fit(source: GrammarSource, text: str) -> Fit:
    matcher = compile_matcher(definition_of(source), vocabulary_of(ByteTokenizer(), ()))
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")  # fails where no text fits
    matcher.try_consume_tokens([(allowed & -allowed).bit_length() - 1])
    matcher.rollback(1)  # fails for lexemes that cannot be taken back
    accepted = 0
    for character in text:
        spelled = list(character.encode(errors="replace"))
        if matcher.try_consume_tokens(spelled) != len(spelled):
            break
        accepted += 1
        matcher.compute_bitmask()  # as in a race: it renews what the lexer may spend
    if error := matcher.get_error():
        raise refusal(error)
    if source.kind != "json_schema":
        return Fit(accepted, matcher.is_accepting())
    judged = judge(source.text, text) if text else Judgement("unchecked")
    afterwards = "; ".join(matcher.get_grammar_warnings()).rstrip(".")
    return Fit(accepted, matcher.is_accepting(), judged.verdict, judged.why, afterwards)


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
    """Reply to the request in standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    request = json.loads(sys.stdin.buffer.read())
    reply = os.dup(1)
    os.dup2(2, 1)  # whatever native code prints is no part of the reply
    _limit(request["deadline"])
    os.write(reply, json.dumps(_evaluate(request)).encode())


if __name__ == "__main__":
    main()
