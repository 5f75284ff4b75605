"""Strangers' grammars, before anything of theirs reaches this process's grammar engine."""

from functools import lru_cache

from backend.errors import DerbyError
from backend.grammar.checks.productive import require_productive
from backend.grammar.checks.scan import scan
from backend.grammar.compile import definition, parts_of
from backend.grammar.messages import explain
from backend.grammar.sandbox.parent import SANDBOX, Explored, Sandbox
from backend.grammar.sources import GrammarSource, shipped
from backend.text import Tokenizer


def vet(source: GrammarSource, tokenizer: Tokenizer) -> None:
    """Raise DerbyError unless the grammar compiles in bounds and every text of it can end.

    What ships is trusted. What was found is remembered, refusals too: twelve columns with one
    endless grammar would keep the next visitor waiting for a minute.
    """
    if source in shipped().values():
        parts_of(source)  # linked once, before anybody's clock runs
    elif refusal := _refusal(source, tokenizer):
        raise DerbyError(refusal)


@lru_cache(maxsize=64)
def _refusal(source: GrammarSource, tokenizer: Tokenizer) -> str:
    try:
        _examined(source, tokenizer, SANDBOX)
    except DerbyError as error:
        return str(error)
    return ""


def explore(
    source: GrammarSource, tokenizer: Tokenizer, text: str, sandbox: Sandbox = SANDBOX
) -> Explored:
    """How far `text` fits the grammar. Raises DerbyError for what `vet` refuses."""
    return sandbox.explore(_examined(source, tokenizer, sandbox), tokenizer, text)


def _examined(source: GrammarSource, tokenizer: Tokenizer, sandbox: Sandbox) -> str:
    """The grammar in llguidance's JSON, found to be good."""
    for module in (source, *source.modules):
        scan(module.text, module.kind)
    parts = parts_of(source)
    made = definition(parts)
    printed = sandbox.check(made, tokenizer)
    # First, for it has the better words for what an endless rule made the engine print.
    require_productive(parts, sandbox.dead)
    if printed:
        raise explain(source, printed, parts)
    return made
