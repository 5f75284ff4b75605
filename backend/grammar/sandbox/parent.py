"""Reads and compiles untrusted grammars in a child process, which may loop, use up memory or crash.

llguidance is native code: it cannot be interrupted, and an abort ends its whole process. Everything
that reads the text before it (GBNF, imports, endless rules) runs there as well, because a time
limit is easier to trust than an algorithm.
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
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backend.errors import DerbyError
from backend.grammar.schema.validity import Judgement, unchecked
from backend.grammar.sources import GrammarSource
from backend.grammar.vocabulary import portable
from backend.processes import from_lasting_thread
from backend.text import Tokenizer

#: Seconds of processor time that one grammar may take, and bytes of memory beside the tokenizers.
DEADLINE = 5.0
MEMORY = 1 << 30
#: Seconds that starting the child and building a large tokenizer may take; and that a grammar may
#: take beyond its deadline because the processor is busy with others.
LOADING = 60.0
#: Seconds between two looks at whether an answer is still wanted.
LOOK = 0.05
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

    `expected` are some of the pieces of text that may follow there; `more`: others begin otherwise.
    `error` is llguidance's own message if it could not follow the text to its end, else "".
    """

    accepted: int
    accepting: bool
    expected: tuple[str, ...]
    error: str
    more: bool = False


class SandboxFailedError(DerbyError):
    """Nothing was found out about the grammar: another time it may be found good."""


class StoppedError(SandboxFailedError):
    """The answer was not wanted any more."""


class TooMuchError(DerbyError):
    """The child died of the grammar, or of its deadline."""


def never() -> bool:
    """Whether an answer is not wanted any more: it always is."""
    return False


def too_long(text: str) -> str:
    """The sentence for a text that is too long to be tried, "" for others."""
    if len(text) <= MAX_TEXT:
        return ""
    return f"The text is {len(text)} characters long; the limit is {MAX_TEXT}: shorten it."


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
        self._used = time.monotonic()
        self._loaded: set[str] = set()
        self._names: weakref.WeakKeyDictionary[Tokenizer, str] = weakref.WeakKeyDictionary()

    @property
    def pid(self) -> int:
        """Process id of the present child, 0 if there is none."""
        return self._child.pid if self._child else 0

    def examine(
        self, source: GrammarSource, tokenizer: Tokenizer, stopped: Callable[[], bool] = never
    ) -> str:
        """The definition of a grammar that is fit for use, see `backend.grammar.definition`.

        Raises DerbyError if it is not, or the child died of it; StoppedError, which ends the child,
        once `stopped()` is true. That is asked in this thread alone.
        """
        return self._job("examine", source, tokenizer, stopped)["definition"]

    def judge(
        self, source: GrammarSource, text: str, stopped: Callable[[], bool] = never
    ) -> Judgement | None:
        """Judge `text` under a JSON Schema, until `stopped()` is true; None for other grammars.
        Raises nothing that the text or the schema can cause.
        """
        if source.kind != "json_schema":
            return None
        try:
            fields = self._job("judge", source, None, stopped, text=text)
        except StoppedError:
            return unchecked("the race was stopped")
        except SandboxFailedError as error:
            return unchecked(str(error))
        except DerbyError:
            limits = f"{self._deadline:g} s or {self._memory >> 20} MiB of memory"
            return unchecked(f"checking it takes more than {limits}")
        fields["later"] = tuple(fields["later"])
        return Judgement(**fields)

    def explore(self, source: GrammarSource, tokenizer: Tokenizer, text: str) -> Explored:
        """How far `text` is accepted. Raises DerbyError as `examine` does, or if it is too long."""
        if why := too_long(text):
            raise DerbyError(why)
        # Half a surrogate pair is not a character and has no bytes.
        plain = re.sub("[\ud800-\udfff]", "\ufffd", text)
        reply = self._job("explore", source, tokenizer, text=plain)
        reply["expected"] = tuple(reply["expected"])
        return Explored(**reply)

    def start(self, tokenizer: Tokenizer) -> None:
        """Have a child ready that knows the tokenizer. Raises DerbyError."""
        with self._lock:
            self._bury()
            self._load(tokenizer)

    def rest(self, seconds: float) -> None:
        """End the child if it is idle and has not been used for so long."""
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._used >= seconds:
                    self.close()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the child; another one starts if the sandbox is used again."""
        self._child = None
        self._loaded.clear()
        if self._end_child:
            self._end_child()

    def _bury(self) -> None:
        """Forget a child that died while idle."""
        if self._child and self._child.poll() is not None:
            self.close()

    def _job(
        self,
        job: str,
        source: GrammarSource,
        tokenizer: Tokenizer | None,
        stopped: Callable[[], bool] = never,
        **more: str,
    ) -> dict[str, Any]:
        """The child's reply. Raises DerbyError if it refuses the grammar, or died of it."""
        with self._lock:
            self._bury()
            request = {"job": job, "memory": self._memory, "source": asdict(source), **more}
            if tokenizer is not None:
                request["tokenizer"] = self._load(tokenizer, stopped)
            try:
                reply = self._ask(request, self._deadline, stopped)
            except _DiedError as died:
                raise self._blame(died) from died
            return self._checked(reply)

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        if failed := reply.get("failed"):
            self.close()  # what a panic leaves behind is not to be relied on
            raise self._too_large() if failed == "MemoryError" else _crash()
        if refused := reply.get("refused"):
            raise DerbyError(refused)
        return reply

    def _load(self, tokenizer: Tokenizer, stopped: Callable[[], bool] = never) -> str:
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
                reply = self._ask(request, LOADING, stopped)
            except _DiedError as died:
                reply = {"failed": f"its process ended with code {died.code}"}
            if refused := reply.get("refused"):
                raise DerbyError(refused)
            if failed := reply.get("failed"):
                raise SandboxFailedError(
                    f"The sandbox for grammars did not start ({failed}): try again; if that does "
                    "not help, choose another model, or install the app's requirements again."
                )
            self._loaded.add(name)
        return name

    def _ask(
        self, request: dict[str, Any], seconds: float, stopped: Callable[[], bool] = never
    ) -> dict[str, Any]:
        """The child's reply. Raises _DiedError if it died instead, SandboxFailedError if it was
        killed after a wait that no grammar alone can cause, StoppedError once `stopped()` is true.
        """
        self._used = time.monotonic()
        child = self._child = self._child or self._start()
        # The child dies of its own timer; where there is none, or it hangs, this one counts.
        patience = seconds + (LOADING if _TIMER else 1)
        line = json.dumps(request | {"seconds": seconds})
        answer = [""]

        def exchange() -> None:
            answer[0] = _exchange(child, line)

        talk = threading.Thread(target=exchange, name="talk with the sandbox", daemon=True)
        talk.start()
        try:
            _wait(talk, patience, stopped)
        except BaseException:
            child.kill()
            talk.join()
            self.close()
            raise
        if answer[0].endswith("\n"):
            return json.loads(answer[0])
        self.close()
        raise _DiedError(child.wait())

    def _start(self) -> subprocess.Popen[str]:
        child = from_lasting_thread(
            lambda: subprocess.Popen(
                [sys.executable, "-m", "backend.grammar.sandbox.child"],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
        )
        self._end_child = weakref.finalize(self, _end, child)
        return child

    def _blame(self, died: _DiedError) -> DerbyError:
        if _TIMER and died.code == -_TIMER:
            return TooMuchError(
                f"The grammar takes longer than {self._deadline:g} s to prepare: simplify it, and "
                "give every rule a way to end."
            )
        if died.code == -signal.SIGABRT:  # how Rust's allocator ends a process without memory
            return self._too_large()
        if died.code == -getattr(signal, "SIGKILL", 0):  # no native code's own doing
            return SandboxFailedError(
                "The sandbox for grammars was killed from outside, perhaps because memory ran "
                "out: try again when less is running."
            )
        return _crash()

    def _too_large(self) -> DerbyError:
        return TooMuchError(
            f"The grammar takes more than {self._memory >> 20} MiB of memory: simplify it."
        )


class _DiedError(Exception):
    """The child ended with exit status `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _crash() -> DerbyError:
    return TooMuchError(
        "The grammar made the grammar engine crash: simplify it or choose a ready-made one."
    )


def _wait(talk: threading.Thread, patience: float, stopped: Callable[[], bool]) -> None:
    """Wait until the talk has ended. Raises SandboxFailedError after `patience` in seconds, and
    StoppedError once `stopped()` is true.
    """
    deadline = time.monotonic() + patience
    talk.join(LOOK)
    while talk.is_alive():
        if stopped():
            raise StoppedError("The grammar was not checked completely: the race was stopped.")
        if time.monotonic() > deadline:
            raise SandboxFailedError(
                f"The sandbox for grammars gave no answer within {patience:g} s: the machine is "
                "busy, so try again, or simplify the grammar."
            )
        talk.join(LOOK)


def _exchange(child: subprocess.Popen[str], line: str) -> str:
    """The line that answers `line`, "" or a part of it if the child died."""
    if not child.stdin or not child.stdout:
        return ""
    try:
        child.stdin.write(line + "\n")
        child.stdin.flush()
        return child.stdout.readline()
    except (OSError, ValueError):  # it died, or its pipes were closed meanwhile
        return ""


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream:
            with contextlib.suppress(OSError):  # what was not written yet is lost
                stream.close()
