"""Untrusted grammars, before anything of theirs reaches this process's grammar engine."""

import weakref
from collections import OrderedDict

from backend.errors import DerbyError
from backend.grammar.checks.productive import require_productive
from backend.grammar.checks.scan import scan
from backend.grammar.definition import definition, parts_of
from backend.grammar.messages import explain
from backend.grammar.sandbox.parent import Explored, Sandbox, SandboxFailedError
from backend.grammar.sources import GrammarSource, shipped
from backend.text import Tokenizer

#: Verdicts remembered for one tokenizer.
MAX_VERDICTS = 64


class Vetting:
    """Examines grammars in a sandbox, and remembers what came of it while the tokenizer lives.

    Refusals are remembered too: twelve columns with one endless grammar would keep the next visitor
    waiting for a minute. What is no fault of the grammar's, such as a sandbox that did not start,
    is not. Not thread-safe but for `explore`.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._refusals: weakref.WeakKeyDictionary[Tokenizer, OrderedDict[GrammarSource, str]] = (
            weakref.WeakKeyDictionary()
        )

    def vet(self, source: GrammarSource, tokenizer: Tokenizer) -> None:
        """Raise DerbyError unless the grammar compiles in bounds and every text of it can end.

        What ships is trusted.
        """
        if source in shipped().values():
            parts_of(source)  # linked once, before anybody's clock runs
            return
        refusals = self._refusals.setdefault(tokenizer, OrderedDict())
        if source not in refusals:
            refusals[source] = self._refusal(source, tokenizer)
            if len(refusals) > MAX_VERDICTS:
                refusals.popitem(last=False)
        refusals.move_to_end(source)
        if refusals[source]:
            raise DerbyError(refusals[source])

    def explore(self, source: GrammarSource, tokenizer: Tokenizer, text: str) -> Explored:
        """Tell how far `text` fits the grammar. Raises DerbyError for what `vet` refuses."""
        return self._sandbox.explore(self._examined(source, tokenizer), tokenizer, text)

    def _refusal(self, source: GrammarSource, tokenizer: Tokenizer) -> str:
        """What is wrong with a grammar, "" if nothing is. Raises SandboxFailedError."""
        try:
            self._examined(source, tokenizer)
        except SandboxFailedError:
            raise
        except DerbyError as error:
            return str(error)
        return ""

    def _examined(self, source: GrammarSource, tokenizer: Tokenizer) -> str:
        """The grammar in llguidance's JSON. Raises DerbyError unless it is good."""
        for module in (source, *source.modules):
            scan(module.text, module.kind)
        parts = parts_of(source)
        written = definition(parts)
        printed = self._sandbox.check(written, tokenizer)
        # First, for it has the better words for what an endless rule made the engine print.
        require_productive(parts, self._sandbox.dead)
        if printed:
            raise explain(source, printed, parts)
        return written
