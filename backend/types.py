"""Frozen values that pass between rooms: what is asked, what is proposed, what came of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError, check_range

Origin = Literal["sampled", "drafted", "bonus", "forced", "fixed"]

#: "": as the chat template has it.
Thinking = Literal["", "on", "off"]

#: Earlier turns of a chat: what was asked, and what was answered.
Turns = tuple[tuple[str, str], ...]

#: A chat as templates and servers read it: role and content of each message.
Messages = list[dict[str, str]]

Logits = NDArray[np.float32]

#: Hidden states of one layer or, beside one another in a row, of several: float32 [tokens, D].
HiddenStates = NDArray[np.float32]

#: Decoder layers, from 0, whose hidden states are wanted: those in front of a layer, its inputs.
Layers = tuple[int, ...]

#: What the passes of a model may check at once: a tree of guesses, a chain of them, or none,
#: because its state cannot be cut back.
Guesses = Literal["trees", "chains", "none"]

#: A KV cache by the engine's own names: 4-D arrays whose axis 2 counts tokens, of which the first
#: are the cache of the first tokens.
Arrays = Mapping[str, NDArray[Any]]

#: Rows of a prefill pass: so few that Stop and the other columns do not wait, so many that the
#: matrix products are compute bound.
PREFILL_CHUNK = 64

MAX_COLUMNS = 12
MAX_NEW_TOKENS = 8192
MAX_TOP = 10


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from logits; the same for every column of a race.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off. The noise
    of position t depends on (seed, t) alone, so lossless columns write the same text.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0.0, 5.0)
        check_range("top-k", self.top_k, 0, 1_000_000)
        check_range("top-p", self.top_p, 0.01, 1.0)
        check_range("seed", self.seed, 0, 2**63 - 1)
        check_range("min-p", self.min_p, 0.0, 1.0)
        check_range("repetition penalty", self.repetition_penalty, 0.1, 10.0)

    def __str__(self) -> str:
        """Such as "T=0.7, min-p 0.1", without the seed and what is off."""
        others = [f for f in fields(self) if f.name not in ("temperature", "seed")]
        named = ((f.name.replace("_", "-"), getattr(self, f.name), f.default) for f in others)
        set_ = (f"{name} {value}" for name, value, off in named if value != off)
        return ", ".join((f"T={self.temperature}", *set_))


#: What makes a program of a prompt, unless the backslash stands before it.
PROGRAM_TAG = re.compile(r"(\\?)(\{\{[ \t\r\n]*(?:gen|select|assistant)\b)")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to answer it."""

    prompt: str
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    chat: bool = True  # wraps the prompt in the model's chat template
    stop: tuple[str, ...] = ()
    context: int = 0  # positions to use, where the text ends; 0: all that the model has
    top: int = 0  # most probable tokens to record for each one that is written
    thinking: Thinking = ""  # of a reasoning model whose template can switch it
    earlier: Turns = ()  # of the chat that the prompt goes on
    ignore_eos: bool = False  # a token that ends the text is one like any other, as in vLLM

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise DerbyError("The prompt is empty: type a question or pick an example.")
        check_range("max new tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS)
        check_range("most likely tokens", self.top, 0, MAX_TOP)
        if self.context:
            check_range("context limit", self.context, 16, 1 << 24)
        if any(not s for s in self.stop):
            raise DerbyError("A stop string is empty: remove it.")
        if (self.earlier or self.thinking) and not self.chat:
            raise DerbyError("Earlier turns and thinking need the chat template: switch it on.")
        stops = (("stop string", text) for text in self.stop)
        turns = (("chat", text) for turn in self.earlier for text in turn)
        for what, text in (("prompt", self.prompt), *stops, *turns):
            require_unicode(what, text)

    @property
    def text(self) -> str:
        """A prompt that is no program as the model reads it."""
        return PROGRAM_TAG.sub(r"\2", self.prompt)

    @property
    def messages(self) -> Messages:
        """The whole chat."""
        return chat_messages(self.earlier, self.text)


def template_options(thinking: Thinking) -> dict[str, bool]:
    """What chat templates call the switch, each by its own name; one that a template does not know
    it ignores. {}: as the template has it.
    """
    return {name: thinking == "on" for name in ("enable_thinking", "thinking") if thinking}


def chat_messages(earlier: Turns, prompt: str) -> Messages:
    """The messages of earlier turns, and the user's next one."""
    messages = [(role, text) for turn in earlier for role, text in zip(_ROLES, turn, strict=True)]
    return [{"role": role, "content": text} for role, text in (*messages, ("user", prompt))]


#: Whose the texts of a turn are.
_ROLES = ("user", "assistant")


def require_unicode(what: str, text: str) -> None:
    """Raise DerbyError if the text has no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise DerbyError(
            f"Character {at + 1} of the {what} (U+{ord(text[at]):04X}) is invalid: remove it."
        ) from error


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which weights run where. `name` is "built-in", a local folder or a Hub id."""

    name: str = "built-in"
    engine: str = "openvino"
    precision: str = "fp32"
    device: str = "CPU"

    def __str__(self) -> str:
        return f"{self.name} on {self.engine} {self.precision} ({self.device})"


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The token that a draft drew, and the probabilities of tokens 0..n-1, float32 [n]; no other
    could be drawn.
    """

    token: int
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A tree of proposed tokens below the last committed one (the root). A token's position is the
    root's plus its depth, and it sees the context, its ancestors and itself.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # index of each token's parent, before it; -1: the root
    scratch: int = 0  # last tokens, which ride along in the pass and are never verified
    feedback: int = 0  # the last of those, whose logits go back to the drafter
    forced: int = 0  # first tokens, a chain: a constraint's only legal continuation
    calls: int = 0  # passes of a draft model that it took
    draws: Mapping[tuple[int, ...], Draw] = field(default_factory=dict, compare=False)  # by path
    by: tuple[str, ...] = field(default=(), compare=False)  # who proposed each verified token

    @property
    def verified(self) -> int:
        """Number of tokens that verification may accept; they come first."""
        return len(self.tokens) - self.scratch

    @property
    def drafted(self) -> int:
        """Number of those that no constraint forces."""
        return self.verified - self.forced

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """Of each verified token, the tokens from the root's next to it."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens[: self.verified], self.parents, strict=False):
            paths.append((*paths[parent], token) if parent >= 0 else (token,))
        return paths

    def behind(self, forced: Sequence[int]) -> "Proposal":
        """The same, hung below the last of these forced tokens."""
        n = len(forced)
        below = tuple(n + parent if parent >= 0 else n - 1 for parent in self.parents)
        return replace(
            self,
            tokens=(*forced, *self.tokens),
            parents=chain_parents(n) + below,
            forced=n,
            draws={(*forced, *path): draw for path, draw in self.draws.items()},
            by=("grammar",) * n + self.proposers,
        )

    @property
    def proposers(self) -> tuple[str, ...]:
        """Who proposed each verified token, "" of those of whom nobody says."""
        return self.by or ("",) * self.verified

    @staticmethod
    def chain(tokens: Sequence[int], calls: int = 0) -> "Proposal":
        return Proposal(tuple(tokens), chain_parents(len(tokens)), calls=calls)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What verifying `proposal` came to: `tokens`, of which the first ones were proposed, at its
    indices `path`, and behind them the target's own. Those behind the end of the text are left out.
    `logits` are float32 [1 + verified + feedback, V]. `gaps`: how far each token's score lay above
    the runner-up's. `position`: that of the first one. `draft_seconds`: what proposing took on the
    column's clock.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]
    proposal: Proposal
    logits: Logits
    gaps: tuple[float, ...] = ()
    position: int = 0
    draft_seconds: float = 0.0

    @property
    def decided(self) -> tuple[int, ...]:
        """The tokens behind the forced ones, which say which guesses were right."""
        return self.tokens[self.proposal.forced :]

    @property
    def feedback(self) -> Logits:
        """The logits that a drafter asked for, [proposal.feedback, V]."""
        return self.logits[1 + self.proposal.verified :]


def chain_parents(n: int) -> tuple[int, ...]:
    """Parent links of n tokens that follow one another."""
    return tuple(range(-1, n - 1))
