"""Prompt lookup: what followed the last occurrence of the text's own ending is proposed again.

The idea of prompt lookup decoding (Saxena 2023) and of LLMA (arXiv 2304.04487), over prompt and
output together.
"""

from collections.abc import Sequence

from backend.drafters.base import NOTHING, NullDrafter
from backend.types import Proposal


class PromptLookup(NullDrafter):
    """Matches the longest suffix of at most `ngram` tokens at its latest earlier occurrence and
    proposes the `k` tokens that came after it. A continuation that runs into the present goes on
    with itself, so a loop is proposed as a loop.
    """

    def __init__(self, k: int, ngram: int) -> None:
        self._k = k
        self._ngram = ngram
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that followed
        self._indexed = 0

    def propose(self, context: Sequence[int], budget: int) -> Proposal:
        self._index(context)
        depth = min(self._k, budget)
        start = self._continuation(context)
        if depth <= 0 or start == len(context):
            return NOTHING
        tokens = list(context[start : start + depth])
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - (len(context) - start)])
        return Proposal.chain(tokens)

    def rewind(self, length: int) -> None:
        if length < self._indexed:
            self._after.clear()
            self._indexed = 0

    def _continuation(self, context: Sequence[int]) -> int:
        """Index of the token after the match; len(context) if nothing matches."""
        for n in range(min(self._ngram, len(context)), 0, -1):
            start = self._after.get(tuple(context[-n:]))
            if start is not None:
                return start
        return len(context)

    def _index(self, context: Sequence[int]) -> None:
        """Index the n-grams before each token not seen yet; the context's own ending stays out."""
        for end in range(max(self._indexed, 1), len(context)):
            for n in range(1, min(self._ngram, end) + 1):
                self._after[tuple(context[end - n : end])] = end
        self._indexed = len(context)
