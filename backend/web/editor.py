"""The page's grammar editor: does a grammar work, and how much of a text does it accept?"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from backend.errors import DerbyError, explain
from backend.grammar.sandbox.parent import Explored, Sandbox, TooMuchError, too_long
from backend.grammar.sources import GrammarSource
from backend.models.files import BUILT_IN, model_files
from backend.text import ByteTokenizer, HfTokenizer, Tokenizer
from backend.web.form import read_grammar
from backend.web.turns import Turns

#: Seconds of processor time that a grammar may take while it is being written.
DEADLINE = 2.0
#: Grammars that are looked at, each by a child process of its own, at a time.
PLACES = 3
#: Seconds without use after which a child ends.
IDLE = 120.0

SOUND = "It works: it compiles, and every text can end."


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Two sentences, and whether the grammar was too much for its child."""

    sound: str
    fits: str
    late: bool = False


class Editor:
    """Answers in sentences; nothing that visitors send is trusted. For one event loop."""

    def __init__(self, tokenizer: Callable[[], Tokenizer]) -> None:
        """`tokenizer` is called when the editor is first used."""
        self._tokenizer = cache(tokenizer)
        self._turns = Turns(PLACES)
        self._sandboxes = tuple(Sandbox(DEADLINE) for _ in range(PLACES))
        self._free = [*self._sandboxes]
        self._threads = ThreadPoolExecutor(PLACES, thread_name_prefix="editor")

    async def look(self, visitor: str, kind: Any, text: Any, sample: Any) -> tuple[str, str]:
        """A sentence on the grammar, and one on the text tried, "" if the grammar is wrong.

        Waits for a turn of the visitor's.
        """
        try:
            await self._turns.enter(visitor)
        except Exception as error:
            return explain(error), ""
        loop, sandbox = asyncio.get_running_loop(), self._free.pop()
        job = self._threads.submit(self._look, sandbox, kind, text, sample)

        def done(job: Future[_Verdict]) -> None:
            loop.call_soon_threadsafe(self._leave, visitor, sandbox, job)

        job.add_done_callback(done)  # even if nobody waits for the answer any more
        verdict = await asyncio.wrap_future(job)
        return verdict.sound, verdict.fits

    def close(self) -> None:
        """End the children, those at work too."""
        for sandbox in self._sandboxes:
            sandbox.close()

    def _leave(self, visitor: str, sandbox: Sandbox, job: Future[_Verdict]) -> None:
        self._free.append(sandbox)
        asyncio.get_running_loop().call_later(IDLE, sandbox.rest, IDLE)
        self._turns.leave(visitor, late=not job.cancelled() and job.result().late)

    def _look(self, sandbox: Sandbox, kind: Any, text: Any, sample: Any) -> _Verdict:
        try:
            source = read_grammar(kind, text)
            tried = sample if isinstance(sample, str) else ""
            why = too_long(tried)
            fits = fit(source, self._tokenizer(), "" if why else tried, sandbox)
            return _Verdict(SOUND, why or fits)
        except TooMuchError as error:
            with suppress(DerbyError):  # the next visitor will be told
                sandbox.start(self._tokenizer())  # in this visitor's turn, not in the next one's
            return _Verdict(explain(error), "", late=True)
        except Exception as error:
            return _Verdict(explain(error), "")


def fit(source: GrammarSource, tokenizer: Tokenizer, text: str, sandbox: Sandbox) -> str:
    """How far `text` fits, and what could follow. Raises DerbyError if the grammar is wrong."""
    explored = sandbox.explore(source, tokenizer, text)
    verdict = _fits(text, explored.accepted, accepting=explored.accepting)
    return f"{verdict}{_next(explored)}"


def _fits(text: str, accepted: int, *, accepting: bool) -> str:
    if accepted < len(text):
        return (
            f"Accepted up to character {accepted} of {len(text)}; {text[accepted]!r} cannot follow."
        )
    what = "The whole text fits" if text else "Nothing has been written yet"
    return f"{what}, and it may {'' if accepting else 'not '}end here."


def _next(explored: Explored) -> str:
    pieces = ", ".join(map(repr, explored.expected))
    return f" Next could be {pieces}{' and others' if explored.more else ''}." if pieces else ""


def page_tokenizer(models: Sequence[str] = (BUILT_IN,)) -> Tokenizer:
    """The vocabulary of the shown continuations: the built-in model's if offered, else bytes."""
    if BUILT_IN not in models:
        return ByteTokenizer()
    files = model_files(BUILT_IN, lambda _: None)
    return HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
