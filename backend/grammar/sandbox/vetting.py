"""Untrusted grammars, before anything of theirs reaches this process's grammar engine."""

import weakref
from collections import OrderedDict
from collections.abc import Callable

from backend.errors import DerbyError
from backend.grammar.definition import definition_of
from backend.grammar.sandbox.parent import Sandbox, SandboxFailedError, never
from backend.grammar.sources import GrammarSource, shipped
from backend.text import Tokenizer

#: Verdicts remembered for one tokenizer.
MAX_VERDICTS = 64


class Vetting:
    """Examines grammars in a sandbox, and remembers what came of it while the tokenizer lives.

    Refusals are remembered too: twelve columns with one endless grammar would keep the next visitor
    waiting for a minute. What is no fault of the grammar's, such as a sandbox that did not start,
    is not. Not thread-safe.
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
        """The definition of a grammar that compiles in bounds and whose every text can end.

        Raises DerbyError for another, StoppedError once `stopped()` is true. What ships is trusted,
        and linked here.
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
