"""Grammar-constrained decoding: llguidance's matchers as constraints.

llguidance (https://github.com/guidance-ai/llguidance) walks a trie of the vocabulary with an Earley
parser over derivative-based lexemes. A mask takes tens to hundreds of microseconds.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from backend.decoding.seams import NOTHING, Constraint, Masks
from backend.errors import DerbyError
from backend.grammar.check import check
from backend.grammar.sources import (
    GrammarSource,
    between,
    definition_of,
    shipped,
)
from backend.grammar.vocabulary import compile_matcher, slices_of, vocabulary_of
from backend.tokenizer import Tokenizer
from backend.types import Proposal

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

#: Compiled grammars that a column keeps for its later slots, of up to some 20 MB each.
_COMPILED = 4

#: llguidance works without the interpreter lock. One thread: one column runs at a time.
_MASKS = ThreadPoolExecutor(1, thread_name_prefix="masks")


class GrammarConstraint(Constraint):
    """Allows exactly the texts of one grammar, and the end of the text where it accepts.

    Raises DerbyError where the grammar cannot continue or outgrows the engine's limits; after that
    it is unusable.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokens: LLTokenizer,
        tokenizer: Tokenizer,
        closing: str = "",
        behind: str = "",
    ) -> None:
        """Take over a matcher over the tokenizer's `tokens`, at the start of a text. A model may
        think first, up to `closing`; the text ends where `behind` follows. A grammar that no token
        fits fails here, by its first mask.
        """
        self._closing, self._behind = closing, behind
        self._size = tokenizer.vocab_size
        self._eos = frozenset(tokens.eos_tokens)
        self._vocabulary, self._matcher = tokens, matcher
        self._committed: list[int] = []
        self.masks_along(NOTHING)

    def forced(self, budget: int) -> Sequence[int]:
        """See Constraint. Returns the forced text as the tokenizer itself would spell it. Where
        text is forced, llguidance's masks allow only that spelling, so the proposal is always
        accepted. It is verified like any other, so the text is always that of the plain loop under
        the same grammar.
        """
        if budget <= 0 or self.finished():
            return ()
        tokens = self._matcher.compute_ff_tokens()[:budget]
        text = self._matcher.compute_ff_bytes() if self._behind else b""
        self._check()
        if self._behind and text.endswith(behind := self._behind.encode()):  # that is given text
            lengths = itertools.accumulate(len(self._vocabulary.decode_bytes([i])) for i in tokens)
            needed = len(text) - len(behind)
            tokens = tokens[: 1 + sum(length < needed for length in lengths)]
        return list(itertools.takewhile(lambda token: token < self._size, tokens))

    def cut(self, proposal: Proposal) -> Proposal:
        """See Constraint. The same object when nothing is ruled out; kept rows stay in order."""
        valid = self._matcher.validate_tokens
        return without(proposal, [valid(list(path)) == len(path) for path in proposal.paths])

    def masks_along(self, proposal: Proposal) -> Masks:
        """See Constraint. Call it on a proposal that `cut` returned, else it raises ValueError.
        After the end of the text only another end is allowed, so that every row can be sampled.
        """
        masks = np.zeros((1 + proposal.drafted, self._size), dtype=np.bool_)
        matcher, at = self._matcher, tuple[int, ...]()
        for row, path in enumerate(((), *proposal.paths)):
            common = len(at)
            while path[:common] != at[:common]:
                common -= 1
            matcher.rollback(len(at) - common)
            at = path[: common + matcher.try_consume_tokens(list(path[common:]))]
            if at != path and not matcher.is_stopped():
                raise ValueError(f"row {row}: cut first")
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            self._check()
            masks[row] = np.unpackbits(bits, count=self._size, bitorder="little")
            if not masks[row].any():
                raise self._dead_end()
        matcher.rollback(len(at))
        return masks

    def start_masks(self, proposal: Proposal) -> Callable[[], Masks]:
        """See Constraint. The masks are computed in a thread."""
        return _MASKS.submit(self.masks_along, proposal).result

    def advance(self, tokens: Sequence[int]) -> None:
        """Move over committed tokens; what follows an end of the text is ignored.

        Raises ValueError for a token that the masks did not allow.
        """
        for token in tokens:
            if self._matcher.is_stopped():
                return
            if self._matcher.try_consume_tokens([token]) != 1:
                self._check()
                raise ValueError(f"committed token {token}")
            if token not in self._eos:
                self._committed.append(token)

    def finished(self) -> bool:
        """See Constraint. Also when nothing but the rest of the text behind may follow."""
        if self._matcher.is_stopped():
            return True
        if not self._behind or self._matcher.is_accepting():
            return bool(self._behind)
        rest = self._matcher.compute_ff_bytes().decode(errors="replace")
        return bool(rest) and self._behind.endswith(rest) and self.completes(self._written + rest)

    def completes(self, text: str) -> bool:
        """See Constraint."""
        tokens = self._vocabulary.greedy_tokenize(text)
        matcher = self._matcher.deep_copy()
        matcher.reset()
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def text(self) -> str:
        """See Constraint."""
        return self._written.partition(self._closing)[2] if self._closing else self._written

    def expected(self) -> str:
        """See Constraint. The forced text, if there is one."""
        if self._closing not in self._written:
            return repr(self._closing)
        if self.finished() or self._matcher.is_accepting():
            return ""
        forced = self._matcher.compute_ff_bytes()
        return repr(forced.decode(errors="replace")) if forced else "more text"

    @property
    def _written(self) -> str:
        return self._vocabulary.decode_str(self._committed)

    def _check(self) -> None:
        """Raise DerbyError if the matcher has failed, which it never says by itself."""
        if self._matcher.is_error():
            raise self._dead_end()

    def _dead_end(self) -> DerbyError:
        return DerbyError(
            f"The grammar cannot go on after {self._written[-60:]!r}: give every rule a way to "
            "end, and simplify the pattern that may stand there."
        )


def without(proposal: Proposal, allowed: Sequence[bool]) -> Proposal:
    """The proposal's drafted tokens that are `allowed`, and all its scratch tokens, with their
    parents numbered again; the same object if all are.
    """
    if all(allowed):
        return proposal
    rows = [i for i, keep in enumerate(allowed) if keep]
    rows += range(proposal.drafted, len(proposal.tokens))
    new = {-1: -1} | {old: i for i, old in enumerate(rows)}
    return replace(
        proposal,
        tokens=tuple(proposal.tokens[i] for i in rows),
        parents=tuple(new[proposal.parents[i]] for i in rows),
        by=tuple(name for name, keep in zip(proposal.proposers, allowed, strict=True) if keep),
    )


#: How an opened prompt ends: <think>, <seed:think>, <thinking>, [THINK].
_OPENED = re.compile(r"([<\[])([a-z]*:?think(?:ing)?)([>\]])\s*$", re.IGNORECASE)
#: Tokens at the end of a prompt in which the tag is looked for.
_LAST = 16


def closing_tag(prompt: Sequence[int], piece: Callable[[int], str]) -> str:
    """What ends the thinking that the prompt has opened, as chat templates of reasoning models do;
    "": it has opened none. `piece` gives a token's text.
    """
    opened = _OPENED.search("".join(map(piece, prompt[-_LAST:])))
    return "{}/{}{}".format(*opened.groups()) if opened else ""


class GrammarCompiler:
    """Makes the constraints of one column. For the next slot it copies what it has just compiled,
    in 0.1 ms instead of up to 40. It shares no matcher with other columns, so compiling counts on
    every column's clock alike.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # They stay at the start of a text: copies share what their lexer learns.
        self._matcher = lru_cache(maxsize=_COMPILED)(compile_matcher)

    def prepare(self, *sources: GrammarSource) -> None:
        """Check grammars that do not ship, and build the model's vocabulary: safety and loading,
        so on nobody's clock. Raises DerbyError as `check` does.
        """
        for source in sources:
            vocabulary_of(self._tokenizer, slices_of(source))
            if source not in shipped().values():
                check(source)
            definition_of(source)  # remembered

    def compile(
        self, source: GrammarSource, lead: str = "", behind: str = "", closing: str = ""
    ) -> Constraint:
        """Make a constraint at the start of a text of a grammar that was prepared. In front of it
        stands `lead`, or a model's thinking up to the tag `closing`; `behind` it, another text.
        """
        tokens = vocabulary_of(self._tokenizer, slices_of(source))
        definition = between(source, lead, behind, closing)
        matcher = self._matcher(definition, tokens).deep_copy()
        return GrammarConstraint(matcher, tokens, self._tokenizer, closing, behind)
