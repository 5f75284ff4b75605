"""How a conversation is led: the target writes the questions as well as the answers.

Whatever does not come from the target is forced upon it: the chat template's tokens, now and then
another system prompt, and the first words of most questions, so that they range over many tasks.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError

from backend.errors import DerbyError

#: Who wrote a token: a template or a given beginning, the target as the user, the target as itself
#: (greedy, or sampled at temperature 0.7).
GIVEN, QUESTION, GREEDY, SAMPLED = range(4)

#: What is rendered to see how a template joins turns.
ROLES = ("system", "user", "assistant", "user")
MARKS = ("prompt", "question", "answer", "again")

OPENINGS = Path(__file__).with_name("openings.json")

#: Shares of conversations: with another system prompt than the template's own; begun by the first
#: words of a long question; begun by those of a long or another one; answered greedily; with a
#: second question; that one begun by given words.
OTHER_SYSTEM, LONG, BEGUN, ANSWERED_GREEDILY, TWO_TURNS, FOLLOWED = 0.10, 0.22, 0.78, 0.60, 0.3, 0.3

#: A question does not end before so many sampled tokens.
SHORTEST_QUESTION = 4

#: A second question needs room for itself and so many tokens of its answer.
SHORTEST_ANSWER = 100


@dataclass(frozen=True, slots=True)
class Caps:
    """`batch` conversations make a shard. The others are in tokens: of a sampled question, of a
    long one, of an answer, and of a whole conversation.
    """

    batch: int = 192
    question: int = 200
    long_question: int = 600
    answer: int = 320
    text: int = 1400


USUAL = Caps()


@dataclass(frozen=True, slots=True)
class Openings:
    """`systems` are prompts; the others begin questions: any, long ones, and second ones."""

    systems: tuple[str, ...]
    starters: tuple[str, ...]
    long: tuple[str, ...]
    follow: tuple[str, ...]


@cache
def openings() -> Openings:
    """The lists of openings.json. Their order decides what a seed draws."""
    stored = json.loads(OPENINGS.read_text(encoding="utf-8"))
    return Openings(**{name: tuple(entries) for name, entries in stored.items()})


@dataclass(frozen=True)
class Template:
    """A chat template taken apart: the text up to the first question, without a system prompt and
    around one; the tokens between question and answer and between answer and question, both behind
    `end`, which ends either. No question contains any of the tokens in `special` but that.
    """

    plain: str
    before_system: str
    after_system: str
    to_answer: tuple[int, ...]
    to_question: tuple[int, ...]
    end: int
    special: frozenset[int]
    encode: Callable[[str], list[int]]

    @cached_property
    def at_first(self) -> tuple[int, ...]:
        """What a question must not begin with."""
        return tuple(sorted(self.special))

    @cached_property
    def within(self) -> tuple[int, ...]:
        """What it must not have later."""
        return tuple(sorted(self.special - {self.end}))

    def opening(self, system: str, starter: str) -> list[int]:
        """Tokens of a conversation up to where its first question is sampled."""
        around = f"{self.before_system}{system}{self.after_system}" if system else self.plain
        return self.encode(around + starter)


def template_of(fast: Any) -> Template:
    """The template of a transformers tokenizer. Raises DerbyError if it cannot be taken apart."""
    turns = [
        {"role": role, "content": f"«{mark}»"} for role, mark in zip(ROLES, MARKS, strict=True)
    ]
    try:
        plain, _ = _around(fast.apply_chat_template(turns[1:2], tokenize=False))
        parts = _around(fast.apply_chat_template(turns, tokenize=False))
        before, after, to_answer, to_question, _ = parts
        return _template(fast, plain, before, after, to_answer, to_question)
    except (ValueError, TemplateError) as error:
        raise DerbyError(
            f"This model's chat template ({error}) does not set out system, user and assistant "
            "turns one after the other: choose a chat model whose template does."
        ) from error


def _around(rendered: str) -> list[str]:
    """What stands before, between and behind the turns."""
    return re.split("|".join(f"«{mark}»" for mark in MARKS), rendered)


def _template(
    fast: Any, plain: str, before: str, after: str, to_answer: str, to_question: str
) -> Template:
    def encode(text: str) -> list[int]:
        return list(fast.encode(text, add_special_tokens=False))

    special = frozenset(i for i, token in fast.added_tokens_decoder.items() if token.special)
    (end, *answer), (same, *question) = encode(to_answer), encode(to_question)
    if end != same or end not in special:
        raise ValueError("no one token ends its turns")
    return Template(plain, before, after, tuple(answer), tuple(question), end, special, encode)


class Chat:
    """One conversation. Tokens in `queue` are forced first; then `phase`, the kind of token that
    the target writes now, is sampled at `temperature` (0: greedy) until the turn ends.
    """

    def __init__(self, template: Template, rng: np.random.Generator, caps: Caps) -> None:
        texts = openings()
        self._template, self._caps = template, caps
        system = _one_of(texts.systems, rng) if rng.random() < OTHER_SYSTEM else ""
        self._cap, starter, x = caps.question, "", rng.random()
        if x < LONG:
            self._cap, starter = caps.long_question, _one_of(texts.long, rng)
        elif x < BEGUN:
            starter = _one_of(texts.starters, rng)
        self._asking = 0.9 + 0.1 * rng.random()
        self._answering = GREEDY if rng.random() < ANSWERED_GREEDILY else SAMPLED
        self._more = rng.random() < TWO_TURNS
        follow = _one_of(texts.follow, rng) if rng.random() < FOLLOWED else ""
        self._follow = template.encode(follow) if follow else []
        self._sampled = 0  # tokens of this turn
        self.phase = QUESTION
        self.queue = template.opening(system, starter)
        self.tokens: list[int] = []
        self.kinds: list[int] = []
        self.done = False

    @property
    def temperature(self) -> float:
        return {QUESTION: self._asking, GREEDY: 0.0, SAMPLED: 0.7}[self.phase]

    @property
    def barred(self) -> tuple[int, ...]:
        """Tokens that a question must not have now."""
        may_end = self._sampled >= SHORTEST_QUESTION
        return self._template.within if may_end else self._template.at_first

    def force(self, count: int) -> None:
        """Move so many tokens of the queue to the text."""
        self.tokens += self.queue[:count]
        self.kinds += [GIVEN] * len(self.queue[:count])
        del self.queue[:count]

    def take(self, token: int) -> None:
        """Add a token that the target wrote."""
        self.tokens.append(token)
        self.kinds.append(self.phase)
        self._sampled += 1
        full = len(self.tokens) >= self._caps.text
        if self.phase == QUESTION:
            if token == self._template.end or self._sampled >= self._cap:
                self._turn(token, self._template.to_answer, self._answering)
            self.done = full
        elif token in self._template.special or self._sampled >= self._caps.answer or full:
            self._answered(token)

    def _answered(self, token: int) -> None:
        astray = token in self._template.special and token != self._template.end
        room = self._caps.text - self._caps.question - SHORTEST_ANSWER
        if self._more and not astray and len(self.tokens) < room:
            self._turn(token, (*self._template.to_question, *self._follow), QUESTION)
            self._more, self._cap = False, self._caps.question
        else:
            self.done = True

    def _turn(self, token: int, between: tuple[int, ...], phase: int) -> None:
        """Let the other side speak, after the end of this turn if `token` was not that."""
        end = self._template.end
        self.queue += [*([] if token == end else [end]), *between]
        self.phase, self._sampled = phase, 0


def _one_of(entries: tuple[str, ...], rng: np.random.Generator) -> str:
    return entries[rng.integers(len(entries))]
