"""One column's way from grammars to constraints."""

from backend.decoding.constraint import Constraint
from backend.grammar.compiled import Compiled
from backend.grammar.sources import GrammarSource
from backend.text import Tokenizer

#: Memory that the compiled grammars of one column's slots may take.
MAX_BYTES = 64 << 20


class GrammarCompiler:
    """What a column has compiled it need not compile again; nobody else's makes it faster."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiled = Compiled(MAX_BYTES)

    def prepare(self, *sources: GrammarSource) -> None:
        """Vet grammars and build the model's tables: safety and loading, so on nobody's clock.

        Raises DerbyError for a grammar that is wrong or could do harm.
        """
        # The grammar engine is imported only where a column needs it.
        from backend.grammar.compile import matcher_tokenizer
        from backend.grammar.sandbox.vetting import vet
        from backend.grammar.slices import slices_of

        for source in sources:
            matcher_tokenizer(self._tokenizer, slices_of(source))
            vet(source, self._tokenizer)

    def compile(self, source: GrammarSource) -> Constraint:
        """A constraint at the start of a text. Raises DerbyError where the grammar is wrong."""
        from backend.grammar.constraint import compile_grammar

        return compile_grammar(source, self._tokenizer, self._compiled)
