"""Walks over a grammar's masks, for the tests that draw grammars at random."""

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from lib import constraint_of
from llguidance import LLTokenizer, TokenizerWrapper

from backend.grammar import vocabulary
from backend.grammar.constraint import GrammarConstraint
from backend.grammar.sources import GrammarSource
from backend.types import Proposal

EOS = 256


class Vocabulary:
    """Every byte, the end of the text, and some longer tokens, as llguidance reads it."""

    eos_token_id = EOS
    bos_token_id = None
    special_token_ids = (EOS,)

    def __init__(self, *longer: bytes) -> None:
        self.tokens = (*(bytes([i]) for i in range(256)), b"<eos>", *longer)
        built = LLTokenizer(TokenizerWrapper(self), eos_token=EOS)
        size = len(self.tokens)
        self._read = vocabulary.Vocabulary(built, size, size, frozenset({EOS}))

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of `text`, the longest first."""
        spelled: list[int] = []
        while text:
            spelled.append(max(self._fitting(text), key=lambda i: len(self.tokens[i])))
            text = text[len(self.tokens[spelled[-1]]) :]
        return spelled

    def constraint(self, source: GrammarSource) -> GrammarConstraint:
        return constraint_of(source, self._read)

    def read(
        self, constraint: GrammarConstraint, text: bytes, rng: Random, limit: int | None = None
    ) -> int:
        """How many bytes of `text` were read, cut at random into tokens that are allowed; until
        `limit` of them if that is given.
        """
        read = 0
        while read < (len(text) if limit is None else min(limit, len(text))):
            fitting = set(self._fitting(text[read:])).intersection(allowed(constraint))
            if not fitting:
                break
            token = rng.choice(sorted(fitting))
            constraint.advance([token])
            read += len(self.tokens[token])
        return read

    def accepts(self, constraint: GrammarConstraint, text: bytes, rng: Random) -> bool:
        """True if `text` was read and may end."""
        whole = self.read(constraint, text, rng) == len(text)
        return whole and EOS in allowed(constraint)

    def _fitting(self, text: bytes) -> list[int]:
        longer = range(EOS + 1, len(self.tokens))
        return [text[0], *(i for i in longer if text.startswith(self.tokens[i]))]


#: From the ids allowed, ascending, and the text so far to the token that comes next.
Choice = Callable[[Sequence[int], bytes], int]


def allowed(constraint: GrammarConstraint) -> list[int]:
    """Ids of the tokens that may come next, ascending."""
    return np.flatnonzero(constraint.masks_along(Proposal()).allowed[0]).tolist()


def walk(constraint: GrammarConstraint, choose: Choice, limit: int) -> bytes:
    """The text of a walk over bytes to the end. Fails at a dead end, or if `limit` bytes are not
    enough.
    """
    text = b""
    for _ in range(limit):
        token = choose(allowed(constraint), text)
        constraint.advance([token])
        if token == EOS:
            return text
        text += bytes([token])
    raise AssertionError(f"no end after {text!r}")
