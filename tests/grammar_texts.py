"""Texts of the shipped grammars, and constraints to hold them against."""

import json
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from backend.grammar.constraint import GrammarConstraint
from backend.grammar.sources import FOLDER, GrammarSource, between
from backend.grammar.vocabulary import compile_matcher, vocabulary_of
from backend.tokenizer import ByteTokenizer, Tokenizer
from backend.types import Proposal


class Examples(NamedTuple):
    """Texts that a shipped grammar accepts and rejects, such as its judge takes and the grammar
    does not, and a prompt that suits it.
    """

    accept: list[str]
    reject: list[str]
    prompt: str
    narrower: Sequence[str] = ()


@cache
def examples(name: str) -> Examples:
    """The contents of `NAME.examples.json` beside a shipped grammar."""
    return Examples(**json.loads((FOLDER / f"{name}.examples.json").read_text(encoding="utf-8")))


def compile_grammar(
    source: GrammarSource, tokenizer: Tokenizer, closing: str = ""
) -> GrammarConstraint:
    """A constraint at the start of a text, of a grammar that is trusted; behind `closing`."""
    tokens = vocabulary_of(tokenizer)
    matcher = compile_matcher(between(source, "", "", closing), tokens)
    return GrammarConstraint(matcher, tokens, tokenizer, closing)


#: One alone, whose vocabulary is made once.
_BYTES = ByteTokenizer()


def accepts(source: GrammarSource, text: str) -> bool:
    """True if a grammar takes every byte of a text and lets it end there."""
    draft = Proposal.chain([*text.encode(), ByteTokenizer.EOS])
    return compile_grammar(source, _BYTES).cut(draft) is draft
