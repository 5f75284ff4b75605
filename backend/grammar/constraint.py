"""Grammar-constrained decoding: an llguidance matcher as a Constraint.

llguidance (https://github.com/guidance-ai/llguidance) walks a trie of the vocabulary with an Earley
parser over derivative-based lexemes. A mask takes tens to hundreds of microseconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from backend.decoding.constraint import Constraint, Masks
from backend.decoding.drafter import NOTHING
from backend.errors import DerbyError
from backend.grammar.compile import too_much
from backend.grammar.vocabulary import Vocabulary
from backend.machine import threads
from backend.types import Proposal, chain_parents

if TYPE_CHECKING:
    from llguidance import LLMatcher

T = TypeVar("T")

#: Lark attributes after which llguidance refuses to roll back, as a definition's JSON has them.
#: Finding one that is not there, in a quoted text say, costs a little time and nothing else.
_COUNTS_TOKENS = re.compile(r"(max_tokens|stop)(\s|\\[nrt])*=")

#: How many continuations are named when a text is cut.
_NAMED = 8


class NativeCalls:
    """Calls to the grammar engine's native code: bounded in time, some in parallel to a pass. A
    process makes only one of these, because it has only one timer.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        """A call that takes longer than `seconds` ends this process by SIGPROF; 0: none does. They
        are of processor time, of each thread that a pass beside it may use: wall-clock time would
        blame a grammar for a machine that is halted.

        For workers, which are replaced: no call of native code can be interrupted otherwise, and
        one is known (`/a+/ /a+/`) that never returns. Only where there are POSIX timers.
        """
        self._seconds = seconds if hasattr(signal, "setitimer") else 0.0
        # llguidance works without the interpreter lock. One thread: races run one at a time, and so
        # do their columns.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Bound the time of what runs inside, and turn a native panic into a DerbyError.

        Inside another one it leaves that one's timer alone.
        """
        arm = self._seconds > 0 and not signal.getitimer(signal.ITIMER_PROF)[0]
        if arm:
            signal.setitimer(signal.ITIMER_PROF, self._seconds * threads())
        try:
            yield
        except BaseException as error:
            # A panic is no Exception, and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise too_much() from error
        finally:
            if arm:
                signal.setitimer(signal.ITIMER_PROF, 0)

    def start(self, call: Callable[[], T]) -> Callable[[], T]:
        """Begin a call while the caller's thread waits elsewhere; what is returned waits for it."""
        return self._thread.submit(call).result


class GrammarConstraint(Constraint):
    """Allows exactly the texts of one grammar, and the end of the text where it accepts.

    Raises DerbyError where the grammar cannot continue or outgrows the engine's limits; after that
    it is unusable.
    """

    def __init__(
        self,
        definition: str,
        matcher: LLMatcher,
        vocabulary: Vocabulary,
        calls: NativeCalls | None = None,
    ) -> None:
        """Take over a matcher of this definition at the start of a text. Computes the first mask,
        so that a grammar which no token fits fails here. Without `calls`, native code may take any
        time.
        """
        self.calls = calls or NativeCalls()
        self._vocabulary = vocabulary
        self._eos = sorted(vocabulary.eos_ids)
        self._committed: list[int] = []
        self._ended = False
        self._matcher = matcher
        self._rolls_back = not _COUNTS_TOKENS.search(definition)
        self.masks_along(NOTHING)

    def forced(self, budget: int) -> Sequence[int]:
        """See Constraint. Returns the forced text as the tokenizer itself would spell it. Where
        text is forced, llguidance's masks allow only that spelling, so the proposal is always
        accepted. It is verified like any other, so the text is always that of the plain loop under
        the same grammar.
        """
        with self.calls.bounded():
            if budget <= 0 or self.finished():
                return ()
            found = self._matcher.compute_ff_tokens()[:budget]
            self.check(self._matcher)
        return list(itertools.takewhile(self.plain, found))

    def cut(self, proposal: Proposal) -> Proposal:
        """See Constraint. The same object when nothing is ruled out; kept rows stay in order."""
        with self._walk(proposal) as walk:
            if not self._ended and walk.is_plain_chain() and walk.to(proposal.drafted - 1):
                return proposal
            kept: list[bool] = []
            for i, parent in enumerate(proposal.parents[: proposal.drafted]):
                kept.append((parent < 0 or kept[parent]) and self._fits(walk, i, parent))
        return proposal if all(kept) else without(proposal, kept)

    def masks_along(self, proposal: Proposal) -> Masks:
        """See Constraint. Call it on a proposal that `cut` returned, else it raises ValueError.
        After the end of the text only another end is allowed, so that every row can be sampled.
        """
        masks = np.zeros((1 + proposal.drafted, self._vocabulary.size), dtype=np.bool_)
        seconds: list[float] = []
        with self._walk(proposal) as walk:
            for row, node in enumerate(range(-1, proposal.drafted)):
                start = perf_counter()
                if self._ended or (node >= 0 and proposal.tokens[node] in self._vocabulary.eos_ids):
                    masks[row, self._eos] = True
                elif walk.to(node):
                    self._fill(masks[row], walk)
                else:
                    raise ValueError(f"token {node}: cut first")
                seconds.append(perf_counter() - start)
        return Masks(masks, tuple(seconds))

    def start_masks(self, proposal: Proposal) -> Callable[[], Masks]:
        """See Constraint. The masks are computed in a thread."""
        return self.calls.start(lambda: self.masks_along(proposal))

    def advance(self, tokens: Sequence[int]) -> None:
        """Move over committed tokens; what follows an end of the text is ignored.

        Raises ValueError for a token that the masks did not allow.
        """
        with self.calls.bounded():
            for token in tokens:
                if self._ended:
                    return
                if token in self._vocabulary.eos_ids:
                    self._ended = True
                elif self.plain(token) and self._matcher.try_consume_tokens([token]) == 1:
                    self._committed.append(token)
                else:
                    self.check(self._matcher)
                    raise ValueError(f"committed token {token}")

    def finished(self) -> bool:
        """See Constraint."""
        return self._ended or self._matcher.is_stopped()

    def expected(self) -> str:
        """See Constraint. The forced text, or some of the pieces that may come next."""
        with self.calls.bounded():
            if self.finished() or self._matcher.is_accepting():
                return ""
            forced = self._matcher.compute_ff_bytes()
        if forced:
            return repr(forced.decode(errors="replace"))
        (row,), _ = self.masks_along(NOTHING)
        pieces = (self._vocabulary.tokens.decode_str([int(token)]) for token in np.flatnonzero(row))
        named = sorted({piece for piece in pieces if piece}, key=lambda piece: (len(piece), piece))
        more = ", ..." if len(named) > _NAMED else ""
        return f"one of {', '.join(map(repr, named[:_NAMED]))}{more}"

    def plain(self, token: int) -> bool:
        """Whether the matcher may be given a token: it has text and is in the matcher's
        vocabulary.
        """
        return 0 <= token < self._vocabulary.known and token not in self._vocabulary.eos_ids

    @contextmanager
    def _walk(self, proposal: Proposal) -> Iterator[_Walk]:
        """A walk with one time limit for all of its native calls."""
        with self.calls.bounded():
            walk = _Walk(self, self._matcher, proposal, rolls_back=self._rolls_back)
            try:
                yield walk
            finally:
                walk.to(-1)

    def _fits(self, walk: _Walk, node: int, parent: int) -> bool:
        """True if drafted token `node` may follow `parent`, which is the root or kept."""
        if self._ended or (
            parent >= 0 and walk.proposal.tokens[parent] in self._vocabulary.eos_ids
        ):
            return False
        if walk.proposal.tokens[node] in self._vocabulary.eos_ids:
            return walk.to(parent) and walk.matcher.is_accepting()
        return walk.to(node)

    def _fill(self, row: NDArray[np.bool_], walk: _Walk) -> None:
        """Set `row`, bool [V] of zeros, where the walk's present state allows a token."""
        bits = np.frombuffer(walk.matcher.compute_bitmask(), dtype=np.uint8)
        self.check(walk.matcher, walk.path_tokens())
        n = min(self._vocabulary.known, 8 * len(bits))
        row[:n] = np.unpackbits(bits, count=n, bitorder="little")
        if walk.matcher.is_accepting():  # else a grammar may still name the end itself
            row[self._eos] = True
        if not row.any():
            raise self._dead_end(walk.path_tokens())

    def check(self, matcher: LLMatcher, drafted: Sequence[int] = ()) -> None:
        """Raise DerbyError if the matcher has failed, which it never says by itself."""
        if matcher.is_error():
            raise self._dead_end(drafted)

    def _dead_end(self, drafted: Sequence[int]) -> DerbyError:
        text = self._vocabulary.tokens.decode_str([*self._committed, *drafted])
        return DerbyError(
            f"The grammar cannot go on after {text[-60:]!r}: give every rule a way to end."
        )


class _Walk:
    """Moves a matcher to any node of a proposal's tree. It starts and ends at the root.

    Going down a chain consumes one token for each node. A branch rolls back to the fork. If the
    grammar cannot roll back, the branch starts again from a copy of the root.
    """

    def __init__(
        self,
        constraint: GrammarConstraint,
        root: LLMatcher,
        proposal: Proposal,
        *,
        rolls_back: bool,
    ) -> None:
        self.proposal = proposal
        self.matcher = root if rolls_back else root.deep_copy()
        self._constraint = constraint
        self._root = root
        self._rolls_back = rolls_back
        self._at: list[int] = []

    def path_tokens(self) -> list[int]:
        """The tokens from below the root to the matcher's present node."""
        return [self.proposal.tokens[i] for i in self._at]

    def is_plain_chain(self) -> bool:
        """True if the drafted tokens follow one another and none of them ends the text."""
        n = self.proposal.drafted
        return self.proposal.parents[:n] == chain_parents(n) and all(
            map(self._constraint.plain, self.proposal.tokens[:n])
        )

    def to(self, node: int) -> bool:
        """Move to drafted token `node`, -1 for the root. Returns False if the grammar forbids it;
        the matcher then is after the last allowed token on the way.
        """
        path = self._path(node)
        self._back_towards(path)
        for i in path[len(self._at) :]:
            token = self.proposal.tokens[i]
            # Not validate_tokens: it overlooks max_tokens beyond its first token.
            if not self._constraint.plain(token) or self.matcher.try_consume_tokens([token]) != 1:
                self._constraint.check(self.matcher, self.path_tokens())
                return False
            self._at.append(i)
        return True

    def _back_towards(self, path: Sequence[int]) -> None:
        """Leave the nodes that are not on `path`."""
        pairs = zip(path, self._at, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared == len(self._at):
            return
        if self._rolls_back:
            self.matcher.rollback(len(self._at) - shared)
            del self._at[shared:]
        else:
            self.matcher = self._root.deep_copy()
            self._at.clear()

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.proposal.parents[node]
        return path[::-1]


def without(proposal: Proposal, kept: Sequence[bool]) -> Proposal:
    """The proposal's kept drafted rows and all its scratch rows, with their parents
    numbered again.
    """
    rows = [i for i, keep in enumerate(kept) if keep]
    rows += range(proposal.drafted, len(proposal.tokens))
    new = {-1: -1} | {old: i for i, old in enumerate(rows)}
    by = tuple(name for name, keep in zip(proposal.proposers, kept, strict=True) if keep)
    return dataclasses.replace(
        proposal,
        tokens=tuple(proposal.tokens[i] for i in rows),
        parents=tuple(new[proposal.parents[i]] for i in rows),
        by=by,
    )
