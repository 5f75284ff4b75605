"""From grammars to constraints: what a process needs for them, and what each column has."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from backend.decoding.constraint import Constraint
from backend.errors import DerbyError
from backend.grammar.check import CheckFailedError, check, never
from backend.grammar.compile import compile_matcher, definition_of, led_by
from backend.grammar.constraint import GrammarConstraint, NativeCalls
from backend.grammar.sources import GrammarSource, shipped
from backend.grammar.vocabulary import Vocabularies, slices_of
from backend.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Compiled grammars that a column keeps for its later slots, of up to some 20 MB each.
KEPT = 4
#: Verdicts remembered.
MAX_VERDICTS = 64


class Grammars:
    """Made by the process that runs races, and shared by its columns. Not thread-safe."""

    def __init__(self, call_limit: float = 0.0) -> None:
        """`call_limit`: seconds after which a call of the grammar engine ends this process; 0: it
        may take any time. See NativeCalls.
        """
        self.calls = NativeCalls(call_limit)
        self.vocabularies = Vocabularies()
        #: What is wrong with a grammar, or "".
        self._verdicts: dict[GrammarSource, str] = {}

    def check(self, source: GrammarSource, stopped: Callable[[], bool] = never) -> None:
        """Raises DerbyError unless it compiles within the limits, StoppedError once `stopped()` is
        true. Shipped ones are trusted. Refusals are remembered: twelve columns with one endless
        grammar would keep the next visitor waiting for a minute.
        """
        if source in shipped().values():
            return
        if source not in self._verdicts:
            if len(self._verdicts) == MAX_VERDICTS:
                self._verdicts.clear()
            try:
                check(source, stopped=stopped)
                self._verdicts[source] = ""
            except CheckFailedError:
                raise
            except DerbyError as error:
                self._verdicts[source] = str(error)
        if self._verdicts[source]:
            raise DerbyError(self._verdicts[source])


class GrammarCompiler:
    """The compiler of one column. For the next slot it copies what it has just compiled, in 0.1 ms
    instead of up to 40. It shares nothing with other columns, so compiling counts on every column's
    clock alike.
    """

    def __init__(self, grammars: Grammars, tokenizer: Tokenizer) -> None:
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._compiled = lru_cache(maxsize=KEPT)(self._compile)

    def prepare(self, *sources: GrammarSource, stopped: Callable[[], bool] = never) -> None:
        """Check grammars and build the model's vocabulary: safety and loading, so on nobody's
        clock. Raises DerbyError and StoppedError as `Grammars.check` does.
        """
        for source in sources:
            self._grammars.vocabularies.get(self._tokenizer, slices_of(source))
            self._grammars.check(source, stopped)
            definition_of(source)  # remembered

    def compile(self, source: GrammarSource, lead: str = "") -> Constraint:
        """Make a constraint at the start of a text that begins with `lead` and goes on with a text
        of a grammar that was prepared.
        """
        vocabulary = self._grammars.vocabularies.get(self._tokenizer, slices_of(source))
        definition = definition_of(source)
        definition = led_by(lead, definition) if lead else definition
        calls = self._grammars.calls
        with calls.bounded():
            matcher = self._compiled(definition, slices_of(source)).deep_copy()
        return GrammarConstraint(definition, matcher, vocabulary, calls)

    def _compile(self, definition: str, slices: tuple[str, ...]) -> LLMatcher:
        """A matcher that stays at the start of a text: its copies share what its lexer learns."""
        vocabulary = self._grammars.vocabularies.get(self._tokenizer, slices)
        return compile_matcher(definition, vocabulary.tokens)
