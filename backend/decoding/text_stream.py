"""A text as it is shown: whole characters of the tokens that come, up to a stop string."""

from collections.abc import Sequence

from backend.tokenizer import Tokenizer


class TextStream:
    """One answer's tokens as text that may be shown: whole characters, up to whichever stop string
    is complete first. What might become one is held back, and so is what might become `behind`,
    which ends nothing: whether the text ends there is for others to say.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], skip: int = 0, behind: str = ""
    ) -> None:
        """Stop strings are not looked for in the first `skip` characters."""
        self._detokenizer = tokenizer.stream()
        self._special = tokenizer.special
        self._stops, self._behind = tuple(stops), behind
        self._skip = skip
        self._pending = ""
        self.output = ""  # all that was returned so far
        self.stopped = False  # at a stop string, of which nothing is ever returned

    def push(self, token: int) -> str:
        piece = self._detokenizer.push(token)
        head, tail = piece[: self._skip], piece[self._skip :]
        self._skip -= len(head)
        text = head + self._unstopped(tail)
        if self._special(token) in self._stops:  # its name is no part of the text
            text += self._rest()
            self.stopped = True
        return self._show(text)

    def flush(self) -> str:
        """The rest, bytes of an incomplete character as replacement characters."""
        return self._show(self._unstopped(self._detokenizer.flush()) + self._rest())

    def flush_whole(self) -> str:
        """The rest without an incomplete character."""
        return self._show(self._rest())

    def _unstopped(self, text: str) -> str:
        """What may be shown once this text has come."""
        if self.stopped:
            return ""
        old = len(self._pending)
        self._pending += text
        ends = [(i + len(s), i) for s in self._stops if (i := self._pending.find(s)) >= 0]
        if ends:
            # The one complete first, as if the text came one character at a time: where it ends
            # must not depend on how it was cut into tokens.
            self.stopped = True
            return self._pending[: min(ends)[1]]
        most = max((_overlap(self._pending, s) for s in (*self._stops, self._behind)), default=0)
        start = self._pending.find(self._behind, max(0, old + 1 - len(self._behind)))
        if self._behind and start >= 0:  # all of it, which the new text has completed
            most = max(most, len(self._pending) - start)
        return self._release(len(self._pending) - most)

    def _rest(self) -> str:
        return "" if self.stopped else self._release(len(self._pending))

    def _release(self, length: int) -> str:
        text, self._pending = self._pending[:length], self._pending[length:]
        return text

    def _show(self, text: str) -> str:
        self.output += text
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
