"""From grammars to constraints: what a process needs for it, and each column has of its own."""

from collections.abc import Callable

from backend.decoding.constraint import Constraint
from backend.grammar.constraint import GrammarConstraint
from backend.grammar.definition import led_by
from backend.grammar.matchers import MatcherCache
from backend.grammar.native_calls import NativeCalls
from backend.grammar.sandbox.parent import Sandbox, never
from backend.grammar.sandbox.vetting import Vetting
from backend.grammar.slices import slices_of
from backend.grammar.sources import GrammarSource
from backend.grammar.vocabulary import Vocabularies
from backend.text import Tokenizer

#: Memory that the compiled grammars of one column's slots may take.
MAX_BYTES = 64 << 20
#: Seconds of processor time, and bytes of memory, that checking one text may take.
JUDGING_DEADLINE = 3.0
JUDGING_MEMORY = 512 << 20


class Grammars:
    """Made by who runs races in a process, and shared by their columns."""

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
    """One column's: what it has compiled it need not compile again. Nobody else's makes it faster,
    so that compiling counts on every column's clock alike.
    """

    def __init__(self, grammars: Grammars, tokenizer: Tokenizer) -> None:
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._matchers = MatcherCache(MAX_BYTES)
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
        of a grammar that was prepared. Raises DerbyError for a wrong grammar.
        """
        vocabulary = self._grammars.vocabularies.get(self._tokenizer, slices_of(source))
        known = self._definitions[source]
        definition = led_by(lead, known) if lead else known
        calls = self._grammars.calls
        return GrammarConstraint(source, vocabulary, self._matchers, calls, definition)
