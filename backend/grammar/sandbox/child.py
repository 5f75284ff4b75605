"""The sandbox's child process: reads and compiles one grammar at a time, and may die of it.

`python -m backend.grammar.sandbox.child` answers JSON lines with JSON lines until its standard
input ends. Nothing heavy is imported: it starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backend.errors import DerbyError
from backend.grammar.definition import definition, parts_of
from backend.grammar.lark.productive import require_productive
from backend.grammar.matchers import compile_matcher
from backend.grammar.messages import explain
from backend.grammar.schema.relaxed import judge_relaxed
from backend.grammar.schema.validity import judge
from backend.grammar.slices import SLICES
from backend.grammar.sources import GrammarSource
from backend.grammar.vocabulary import read
from backend.processes import die_with_parent

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Tokens that a grammar's probe walk goes, to meet states that explode only after a while.
PROBE = 32
#: Pieces of text shown as what may follow.
SHOWN = 12
_LONGEST = 60
#: What a refused JSON Schema is offered if the rest of it can be held.
RELAX = "Or set relax: the column then decodes under the rest, and checks the text at its end."
_NO_TEXT = "no text that this model can write fits it"


class _Jobs:
    """What the jobs need: the tokenizers received so far, by name."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, LLTokenizer] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request of the parent's."""
        try:
            if request["job"] == "load":
                parts = ("hf", "width", "eos", "spelling", "special")
                written = {key: request[key] for key in parts if key in request}
                self._tokenizers[request["tokenizer"]] = read(written, SLICES)
                return {}
            if request["job"] == "judge":
                _limit_memory(request["memory"])
                source = _source(request["source"])
                judging = judge_relaxed if source.relax else judge
                return asdict(judging(source.text, request["text"]))
            tokenizer = self._tokenizers[request["tokenizer"]]
            linked = examine(_source(request["source"]), tokenizer)
        except DerbyError as error:
            return {"refused": str(error)}
        if request["job"] == "examine":
            return {"definition": linked}
        return _explore(compile_matcher(linked, tokenizer), tokenizer, request["text"])


def _source(record: dict[str, Any]) -> GrammarSource:
    """The source that `asdict` wrote."""
    modules = tuple(map(_source, record["modules"]))
    name, relax = record["name"], record["relax"]
    return GrammarSource(record["kind"], record["text"], name, modules, relax)


def examine(source: GrammarSource, tokenizer: LLTokenizer) -> str:
    """The grammar's definition. Raises DerbyError unless it compiles and every text of it can end.
    If a relaxed JSON Schema would be accepted, the error says so.
    """
    try:
        return _examined(source, tokenizer)
    except DerbyError as error:
        if source.kind == "json_schema" and not source.relax and _fit_relaxed(source, tokenizer):
            raise DerbyError(f"{error} {RELAX}") from error
        raise


def _fit_relaxed(source: GrammarSource, tokenizer: LLTokenizer) -> bool:
    try:
        _examined(replace(source, relax=True), tokenizer)
    except DerbyError:
        return False
    return True


def _examined(source: GrammarSource, tokenizer: LLTokenizer) -> str:
    parts = parts_of(source)
    linked = definition(parts)
    matcher = compile_matcher(linked, tokenizer)
    printed = _wrong(matcher) or _probe(matcher, tokenizer)
    # First, because it has the better words for what an endless rule made the engine print.
    require_productive(parts)
    if printed:
        raise explain(printed, parts)
    return linked


def _is_dead_end(matcher: LLMatcher) -> bool:
    """True if it failed because nothing may follow. stop_reason() does not say so."""
    return matcher.get_error().startswith("NoExtension")


def _wrong(matcher: LLMatcher) -> str:
    """What is wrong with a grammar at its start, or ""."""
    if _is_dead_end(matcher):
        return _NO_TEXT
    return matcher.get_error().split("\n<state>")[0]  # a dump follows


def _probe(matcher: LLMatcher, tokenizer: LLTokenizer) -> str:
    """Walk at random, always in the same way, and return the error at which the matcher failed, or
    "". A walk that reaches a dead end counts as a failure only at its first step.
    """
    rng = random.Random(0)
    for step in range(PROBE):
        allowed = _allowed(matcher, tokenizer)
        if not len(allowed):
            if step and _is_dead_end(matcher):
                return ""
            return _wrong(matcher) or ("" if step or matcher.is_accepting() else _NO_TEXT)
        matcher.try_consume_tokens([int(rng.choice(allowed))])
    return ""


def _allowed(matcher: LLMatcher, tokenizer: LLTokenizer) -> Any:
    """Ids of the tokens that may come next, int64 [n] ascending; no end where it is optional."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    if matcher.is_error():
        return np.empty(0, dtype=np.int64)
    ids = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: tokenizer.vocab_size])
    return ids[~np.isin(ids, tokenizer.eos_tokens)] if matcher.is_accepting() else ids


def _explore(matcher: LLMatcher, tokenizer: LLTokenizer, text: str) -> dict[str, Any]:
    if wrong := _wrong(matcher):
        return {"accepted": 0, "accepting": False, "expected": [], "error": wrong}
    accepted = _accepted(matcher, tokenizer, text)
    there = _after(matcher, tokenizer, text[:accepted]) or matcher
    expected, more = _expected(there, tokenizer)
    return {
        "accepted": accepted,
        "accepting": there.is_accepting(),
        "expected": expected,
        "more": more,
        "error": "" if accepted and _is_dead_end(there) else _wrong(there),
    }


def _expected(matcher: LLMatcher, tokenizer: LLTokenizer) -> tuple[list[str], bool]:
    # From 0xFF on, what is forced is special tokens by number.
    forced = matcher.compute_ff_bytes().split(b"\xff")[0].decode(errors="ignore")
    if forced:
        return [forced[:_LONGEST]], False
    return choose(tokenizer.decode_bytes([int(i)]) for i in _allowed(matcher, tokenizer))


def _after(matcher: LLMatcher, tokenizer: LLTokenizer, text: str) -> LLMatcher | None:
    """A copy that has read `text`, None if the grammar, or the vocabulary, has no such text."""
    tokens = tokenizer.greedy_tokenize(text)
    if tokenizer.decode_bytes(tokens) != text.encode():  # a byte may have no token
        return None
    copy = matcher.deep_copy()
    return copy if copy.try_consume_tokens(tokens) == len(tokens) else None


def _accepted(matcher: LLMatcher, tokenizer: LLTokenizer, text: str) -> int:
    """How many characters of `text` are the beginning of a text of the grammar."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _after(matcher, tokenizer, text[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def choose(pieces: Iterable[bytes]) -> tuple[list[str], bool]:
    """At most SHOWN texts that represent `pieces`, all possible continuations, and whether other
    continuations begin differently. One text for each first character: the longest piece if the
    others are its beginnings, as in a keyword, else the shortest. ASCII goes first, spread evenly
    if there is more.
    """
    starts: dict[str, list[str]] = {}
    broken: list[str] = []
    for piece in pieces:
        try:
            text = piece.decode()
        except UnicodeDecodeError:  # part of a character
            broken.append(piece.decode(errors="backslashreplace"))
        else:
            starts.setdefault(text[:1], []).append(text)
    plain = sorted(start for start in starts if start.isascii())
    firsts = plain if len(plain) >= SHOWN else sorted(starts)
    step = max(len(firsts) / SHOWN, 1)
    shown = [_typical(starts[firsts[int(i * step)]]) for i in range(min(len(firsts), SHOWN))]
    chosen = shown or broken[:SHOWN]
    return chosen, len(starts) + len(broken) > len(chosen)


def _typical(texts: list[str]) -> str:
    longest = max(texts, key=len)
    return longest if all(longest.startswith(text) for text in texts) else min(texts, key=len)


def _limit_memory(extra: int) -> None:
    """Allow `extra` bytes of address space above what is in use now, and no core dumps."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + extra, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with_parent()  # also while a grammar keeps it from reading on
    # Whatever native code prints must not end up between two answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs = _Jobs()
    for line in sys.stdin:
        request = json.loads(line)
        _arm(request["seconds"])
        try:
            reply = jobs.answer(request)
        except BaseException as error:  # a panic in native code is no Exception
            reply = {"failed": type(error).__name__}
        _arm(0)
        if request["job"] == "load":
            _limit_memory(request["memory"])
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def _arm(seconds: float) -> None:
    """Die by SIGPROF after `seconds` of processor time unless armed again. Wall-clock time would
    blame a grammar for a busy machine. The signal's default action needs no interpreter.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    main()
