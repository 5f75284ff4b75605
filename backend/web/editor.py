"""The page's grammar editor: is a grammar sound, and how far does a text fit it?"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from backend.errors import explain
from backend.grammar.sandbox.parent import MAX_TEXT, Sandbox
from backend.grammar.sandbox.vetting import Vetting
from backend.grammar.sources import GrammarSource
from backend.models.files import BUILT_IN, model_files
from backend.text import ByteTokenizer, HfTokenizer, Tokenizer
from backend.web.form import read_grammar

#: Seconds that a grammar may take while it is being written: others wait for the same child.
DEADLINE = 2.0

SOUND = "Sound: it compiles, and every text of it can end."


class Editor:
    """Answers in sentences; nothing that visitors send is trusted."""

    def __init__(self, tokenizer: Callable[[], Tokenizer]) -> None:
        """`tokenizer` is called when the editor is first used."""
        self._tokenizer = cache(tokenizer)
        self._vetting = Vetting(Sandbox(DEADLINE))

    def look(self, kind: Any, text: Any, sample: Any) -> tuple[str, str]:
        """A sentence on the grammar, and one on the text tried, "" if the grammar is wrong."""
        try:
            source = read_grammar(kind, text)
            tried = sample if isinstance(sample, str) else ""
            return SOUND, fit(source, self._tokenizer(), tried[:MAX_TEXT], self._vetting)
        except Exception as error:
            return explain(error), ""


def fit(source: GrammarSource, tokenizer: Tokenizer, text: str, vetting: Vetting) -> str:
    """How far `text` fits, and what could follow. Raises DerbyError if the grammar is wrong."""
    explored = vetting.explore(source, tokenizer, text)
    verdict = _fits(text, explored.accepted, accepting=explored.accepting)
    return f"{verdict}{_next(explored.expected)}"


def _fits(text: str, accepted: int, *, accepting: bool) -> str:
    if accepted < len(text):
        return (
            f"Accepted up to character {accepted} of {len(text)}; {text[accepted]!r} cannot follow."
        )
    what = "The whole text fits" if text else "Nothing is written yet"
    return f"{what}, and it may {'' if accepting else 'not '}end here."


def _next(expected: Sequence[str]) -> str:
    return f" Next could be {', '.join(map(repr, expected))}." if expected else ""


def page_tokenizer(models: Sequence[str] = (BUILT_IN,)) -> Tokenizer:
    """The vocabulary that continuations are told in: the built-in model's if offered, or bytes."""
    if BUILT_IN not in models:
        return ByteTokenizer()
    files = model_files(BUILT_IN, lambda _: None)
    return HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
