"""Compiles untrusted grammars in a child process that may loop, swell or crash without harm.

llguidance is native code: it cannot be interrupted, and an abort takes its whole process down.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import DerbyError
from backend.grammar.vocabulary import portable
from backend.text import Tokenizer

#: Seconds of processor time that one grammar may take, and bytes of memory beside the tokenizers.
DEADLINE = 5.0
MEMORY = 1 << 30
#: Seconds that starting the child and building a large tokenizer may take; and that a grammar may
#: take beyond its deadline because the processor is busy with others.
LOADING = 60.0
#: What the child counts processor time with. Where there is none, only clock time bounds it.
_TIMER = getattr(signal, "SIGPROF", None)
#: Longest text that is tried, in characters.
MAX_TEXT = 16 * 1024
#: More would only fill the child's memory: it starts over instead.
_TOKENIZERS = 2
_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Explored:
    """How far a text fits a grammar: `accepted` characters, after which it may end if `accepting`.

    `expected` are some of the pieces of text that may follow there. `error` is llguidance's own
    message if the grammar is wrong, else "".
    """

    accepted: int
    accepting: bool
    expected: tuple[str, ...]
    error: str


class SandboxFailedError(DerbyError):
    """Nothing was found out about the grammar: another time it may be found good."""


class Sandbox:
    """One child process, started when first needed and again after it died; thread-safe.

    The child ends with the sandbox, or with this process.
    """

    def __init__(self, deadline: float = DEADLINE, memory: int = MEMORY) -> None:
        """`deadline` in seconds of processor time a grammar, `memory` in bytes above what the
        tokenizers take.
        """
        self._deadline = deadline
        self._memory = memory
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._end_child: weakref.finalize[..., Sandbox] | None = None
        self._loaded: set[str] = set()
        self._names: weakref.WeakKeyDictionary[Tokenizer, str] = weakref.WeakKeyDictionary()

    @property
    def pid(self) -> int:
        """Process id of the present child, 0 if there is none."""
        return self._child.pid if self._child else 0

    def check(self, definition: str, tokenizer: Tokenizer) -> str:
        """What llguidance says is wrong with a grammar in its JSON form, "" if it is fit for use.

        Raises DerbyError if the child died of it.
        """
        with self._lock:
            return self._job({"job": "check", "definition": definition}, tokenizer)["error"]

    def dead(self, definition: str, words: Sequence[str]) -> list[bool]:
        """For each text: whether the grammar begins with it and never goes on.

        Raises DerbyError if the child died of it.
        """
        with self._lock:
            request = {"job": "dead", "definition": definition, "words": list(words)}
            return self._job(request)["dead"]

    def explore(self, definition: str, tokenizer: Tokenizer, text: str) -> Explored:
        """How far `text` is accepted. Raises DerbyError if it is too long or the child died."""
        if len(text) > MAX_TEXT:
            raise DerbyError(
                f"The text is {len(text)} characters long; the limit is {MAX_TEXT}: shorten it."
            )
        # Half a surrogate pair is no character and has no bytes.
        request = {"definition": definition, "text": re.sub("[\ud800-\udfff]", "\ufffd", text)}
        with self._lock:
            reply = self._job({"job": "explore", **request}, tokenizer)
        return Explored(
            reply["accepted"], reply["accepting"], tuple(reply["expected"]), reply["error"]
        )

    def close(self) -> None:
        """End the child; another one starts if the sandbox is used again."""
        self._child = None
        self._loaded.clear()
        if self._end_child:
            self._end_child()

    def _job(self, request: dict[str, Any], tokenizer: Tokenizer | None = None) -> dict[str, Any]:
        """The child's reply. Raises DerbyError if the grammar was too much for it."""
        if self._child and self._child.poll() is not None:
            self.close()  # it died while idle
        if tokenizer is not None:
            request["tokenizer"] = self._load(tokenizer)
        try:
            reply = self._ask(request, self._deadline)
        except _DiedError as died:
            raise self._blame(died) from died
        if failed := reply.get("failed"):
            self.close()  # what a panic leaves behind is not to be relied on
            raise self._too_large() if failed == "MemoryError" else _crash()
        return reply

    def _load(self, tokenizer: Tokenizer) -> str:
        """The name under which the child has `tokenizer`."""
        name = self._names.get(tokenizer)
        if name in self._loaded:
            return name
        built = portable(tokenizer)
        name = self._names[tokenizer] = hashlib.sha256(json.dumps(built).encode()).hexdigest()
        if name not in self._loaded:
            if len(self._loaded) >= _TOKENIZERS:
                self.close()
            request = {"job": "load", "tokenizer": name, "memory": self._memory, **built}
            try:
                reply = self._ask(request, LOADING)
            except _DiedError as died:
                reply = {"failed": f"its process ended with code {died.code}"}
            if refused := reply.get("refused"):
                raise DerbyError(refused)
            if failed := reply.get("failed"):
                raise SandboxFailedError(
                    f"The sandbox for grammars did not start ({failed}): try again; if that does "
                    "not help, choose another model, or install the app's requirements anew."
                )
            self._loaded.add(name)
        return name

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The child's reply. Raises _DiedError if it died instead, SandboxFailedError if it was
        killed after a wait that no grammar alone can cause.
        """
        child = self._child = self._child or self._start()
        # The child dies of its own timer; where there is none, or it hangs, this one counts.
        patience = seconds + (LOADING if _TIMER else 1)
        overdue = threading.Event()

        def reap() -> None:
            overdue.set()
            child.kill()

        reaper = threading.Timer(patience, reap)
        reaper.daemon = True
        reaper.start()
        try:
            line = _exchange(child, json.dumps(request | {"seconds": seconds}))
        finally:
            reaper.cancel()
        if line.endswith("\n"):
            return json.loads(line)
        self.close()
        if overdue.is_set():
            raise SandboxFailedError(
                f"The sandbox for grammars gave no answer within {patience:g} s: the machine is "
                "busy, so try again, or simplify the grammar."
            )
        raise _DiedError(child.wait())

    def _start(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "backend.grammar.sandbox.child"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._end_child = weakref.finalize(self, _end, child)
        return child

    def _blame(self, died: _DiedError) -> DerbyError:
        if _TIMER and died.code == -_TIMER:
            return DerbyError(
                f"The grammar takes longer than {self._deadline:g} s to prepare: simplify it, and "
                "give every rule a way to end."
            )
        if died.code == -signal.SIGABRT:  # how Rust's allocator ends a process without memory
            return self._too_large()
        if died.code == -getattr(signal, "SIGKILL", 0):  # no native code's own doing
            return SandboxFailedError(
                "The sandbox for grammars was killed from outside, perhaps for want of memory: try "
                "again when less is running."
            )
        return _crash()

    def _too_large(self) -> DerbyError:
        return DerbyError(
            f"The grammar takes more than {self._memory >> 20} MiB of memory: simplify it."
        )


class _DiedError(Exception):
    """The child ended with exit status `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _crash() -> DerbyError:
    return DerbyError(
        "The grammar made the grammar engine crash: simplify it or pick one that ships."
    )


def _exchange(child: subprocess.Popen[str], line: str) -> str:
    """The line that answers `line`, "" or a part of it if the child died."""
    if not child.stdin or not child.stdout:
        return ""
    try:
        child.stdin.write(line + "\n")
        child.stdin.flush()
        return child.stdout.readline()
    except OSError:
        return ""


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream:
            with contextlib.suppress(OSError):  # what was not written yet is lost
                stream.close()
