"""From grammars to constraints: how grammars are checked, what a process needs for them, and what
each column has.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from backend.decoding.constraint import Constraint
from backend.errors import DerbyError
from backend.grammar.constraint import GrammarConstraint
from backend.grammar.definition import definition_of, led_by
from backend.grammar.matchers import compile_matcher
from backend.grammar.native_calls import NativeCalls
from backend.grammar.sandbox.parent import Sandbox, SandboxFailedError, never
from backend.grammar.slices import slices_of
from backend.grammar.sources import GrammarSource, shipped
from backend.grammar.vocabulary import Vocabularies
from backend.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

#: Compiled grammars that a column keeps for its later slots, of up to some 20 MB each.
KEPT = 4
#: Seconds of processor time, and bytes of memory, that checking one text may take.
JUDGING_DEADLINE = 3.0
JUDGING_MEMORY = 512 << 20
#: Verdicts remembered for one tokenizer.
MAX_VERDICTS = 64


class Vetting:
    """Checks grammars in a sandbox, and remembers the results while the tokenizer lives.

    Refusals are remembered too: twelve columns with one endless grammar would keep the next visitor
    waiting for a minute. Failures that are not the grammar's fault, such as a sandbox that did not
    start, are not remembered. Not thread-safe.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        #: A good grammar's definition, or what is wrong with another one.
        self._verdicts: weakref.WeakKeyDictionary[
            Tokenizer, OrderedDict[GrammarSource, str | DerbyError]
        ] = weakref.WeakKeyDictionary()

    def vet(
        self, source: GrammarSource, tokenizer: Tokenizer, stopped: Callable[[], bool] = never
    ) -> str:
        """The definition of a grammar that compiles within the limits and in which every text can
        end. Raises DerbyError for any other grammar, StoppedError once `stopped()` is true. Shipped
        grammars are trusted, and linked here.
        """
        if source in shipped().values():
            return definition_of(source)  # linked once, before anybody's clock runs
        verdicts = self._verdicts.setdefault(tokenizer, OrderedDict())
        if source not in verdicts:
            try:
                verdicts[source] = self._sandbox.examine(source, tokenizer, stopped)
            except SandboxFailedError:
                raise
            except DerbyError as error:
                verdicts[source] = DerbyError(str(error))
            if len(verdicts) > MAX_VERDICTS:
                verdicts.popitem(last=False)
        verdicts.move_to_end(source)
        found = verdicts[source]
        if isinstance(found, DerbyError):
            raise DerbyError(str(found))
        return found


class Grammars:
    """Made by the process that runs races, and shared by its columns."""

    def __init__(self, call_limit: float = 0.0) -> None:
        """`call_limit`: seconds after which a call of the grammar engine ends this process; 0: it
        may take any time. See NativeCalls.
        """
        self.calls = NativeCalls(call_limit)
        self.vocabularies = Vocabularies()
        self.vetting = Vetting(Sandbox())
        #: For finished texts: it holds no tokenizer.
        self.judging = Sandbox(JUDGING_DEADLINE, JUDGING_MEMORY)


class GrammarCompiler:
    """The compiler of one column. For the next slot it copies what it has just compiled, in 0.1 ms
    instead of up to 40. It shares nothing with other columns, so compiling counts on every column's
    clock alike.
    """

    def __init__(self, grammars: Grammars, tokenizer: Tokenizer) -> None:
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._compiled = lru_cache(maxsize=KEPT)(self._compile)
        self._definitions: dict[GrammarSource, str] = {}

    def prepare(self, *sources: GrammarSource, stopped: Callable[[], bool] = never) -> None:
        """Vet grammars and build the model's vocabulary: safety and loading, so on nobody's clock.

        Raises DerbyError for a grammar that is wrong or could do harm, StoppedError once
        `stopped()` is true.
        """
        for source in sources:
            self._grammars.vocabularies.get(self._tokenizer, slices_of(source))
            definition = self._grammars.vetting.vet(source, self._tokenizer, stopped)
            self._definitions[source] = definition

    def compile(self, source: GrammarSource, lead: str = "") -> Constraint:
        """Make a constraint at the start of a text that begins with `lead` and goes on with a text
        of a grammar that was prepared.
        """
        vocabulary = self._grammars.vocabularies.get(self._tokenizer, slices_of(source))
        known = self._definitions[source]
        definition = led_by(lead, known) if lead else known
        calls = self._grammars.calls
        with calls.bounded():
            matcher = self._compiled(definition, slices_of(source)).deep_copy()
        return GrammarConstraint(definition, matcher, vocabulary, calls)

    def _compile(self, definition: str, slices: tuple[str, ...]) -> LLMatcher:
        """A matcher that stays at the start of a text: its copies share what its lexer learns."""
        vocabulary = self._grammars.vocabularies.get(self._tokenizer, slices)
        return compile_matcher(definition, vocabulary.tokens)
