"""The page's grammar editor: does a grammar work, and how much of a text does it accept?"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from backend.errors import explain
from backend.grammar.check import check
from backend.grammar.sources import GrammarSource
from backend.web.form import read_grammar

#: Seconds of processor time that a grammar may take while it is being written.
DEADLINE = 2.0

SOUND = "It works."

#: Each of the three waits for one child process.
_THREADS = ThreadPoolExecutor(3, thread_name_prefix="editor")


async def look(kind: Any, text: Any, sample: Any) -> tuple[str, str]:
    """A sentence on the grammar, and one on the text tried, "" if the grammar is wrong. Nothing
    that visitors send is trusted.
    """

    def sentences() -> tuple[str, str]:
        try:
            source = read_grammar(kind, text)
            return SOUND, fit(source, sample if isinstance(sample, str) else "", DEADLINE)
        except Exception as error:
            return explain(error), ""

    return await asyncio.get_running_loop().run_in_executor(_THREADS, sentences)


def fit(source: GrammarSource, text: str, deadline: float) -> str:
    """How far `text` fits. Raises DerbyError if the grammar is wrong or the text too long."""
    fit = check(source, text, deadline)
    if fit.accepted < len(text):
        return (
            f"Accepted up to character {fit.accepted} of {len(text)}; {text[fit.accepted]!r} "
            "cannot follow."
        )
    what = "The whole text fits" if text else "Nothing has been written yet"
    return f"{what}, and it may {'' if fit.accepting else 'not '}end here."
