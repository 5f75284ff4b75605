"""What happens in a race, as plain values with a JSON round trip: the one stream that all read.

Events are created without checks, because a race has thousands of them. Their types name the bounds
of a recorded event, which pydantic checks (`backend/records/file.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from backend.errors import explain
from backend.types import Origin

Reason = Literal[
    "end of text",
    "stop string",
    "token limit",
    "photo finish",
    "context full",
    "end of program",
    "stopped",
]

Index = Annotated[int, Field(ge=0, le=11)]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Rows = Annotated[int, Field(ge=1, le=2**16)]
Token = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(ge=-1e12, le=1e12)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Measured = Annotated[float, Field(ge=1e-9, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(max_length=200)]

# A pair is a list, as JSON has it, and is read as a tuple, whose places have types of their own.
if TYPE_CHECKING:
    Gap = float
    Span = list[str]
    Proposer = list[Any]
    Probable = list[Any]
    Scalar = Any
else:
    Gap = Annotated[
        Annotated[float, Field(ge=0, le=1e12)] | None,
        AfterValidator(lambda gap: inf if gap is None else gap),
    ]
    Span = Annotated[tuple[Origin, str], AfterValidator(list)]
    Proposer = Annotated[tuple[Name, Count], AfterValidator(list)]
    Probable = Annotated[tuple[str, Share], AfterValidator(list)]
    Scalar = str | bool | Count | Number | None


@dataclass(frozen=True, slots=True)
class Preparing:
    """The race waits for something: a download, a conversion, a model being loaded."""

    text: str
    kind: Literal["Preparing"] = field(default="Preparing", kw_only=True)


@dataclass(frozen=True, slots=True)
class Conditions:
    """How much of the machine's time `others` took while the columns ran: other programs, but for
    the page's own process and the race's servers, and what its host gave to others (steal). They
    come last, and are of all the race's time.
    """

    others: Share
    kind: Literal["Conditions"] = field(default="Conditions", kw_only=True)


@dataclass(frozen=True, slots=True)
class Started:
    """The column begins. `spec` has the parts of its ModelSpec ({}: unknown). Columns with the same
    `tokenizer` mean the same by a token id ("": unknown). `lossless` False: it promises the
    distribution of the plain text, and not that text. `ends`: the tokens that end a text (None:
    unknown). `notes`: see Tokenizer.
    """

    column: Index
    prompt_tokens: Count
    tokenizer: Name = ""
    spec: dict[Name, Name] = field(default_factory=dict)
    lossless: bool = True
    ends: list[Token] | None = None
    notes: list[str] = field(default_factory=list)
    kind: Literal["Started"] = field(default="Started", kw_only=True)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What took `seconds` before the prompt: compiling a grammar, and reading a saved cache. The
    column's cache holds the first `reused` tokens, which need not be computed.
    """

    column: Index
    reused: Count
    seconds: Seconds
    kind: Literal["Prepared"] = field(default="Prepared", kw_only=True)


@dataclass(frozen=True, slots=True)
class CostsKnown:
    """What the column's passes are known to cost, in seconds, over each of `widths` rows."""

    column: Index
    widths: Annotated[list[Rows], Field(min_length=1)]
    passes: Annotated[list[Measured], Field(min_length=1)]
    kind: Literal["CostsKnown"] = field(default="CostsKnown", kw_only=True)

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.passes) or any(a >= b for a, b in pairwise(self.widths)):
            raise ValueError("passes cost what no widths are given for")


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided for the column, whenever it changes: `settings` in force instead of the
    column's own, why in a sentence, what was `declined`, a sentence each, and whether all that is
    left is `plain` decoding.
    """

    column: Index
    settings: dict[Name, Scalar]
    why: str
    declined: list[str]
    plain: bool = False
    kind: Literal["Decided"] = field(default="Decided", kw_only=True)


@dataclass(frozen=True, slots=True)
class Fed:
    """Fixed text of a program was appended, to be computed by the next passes. Getting the next
    slot ready, its grammar included, took `seconds`.
    """

    column: Index
    spans: list[Span]
    seconds: Seconds
    kind: Literal["Fed"] = field(default="Fed", kw_only=True)


@dataclass(frozen=True, slots=True)
class Filled:
    """A slot of a program has its value. `spans` is text that had been held back."""

    column: Index
    name: str
    value: str
    spans: list[Span]
    kind: Literal["Filled"] = field(default="Filled", kw_only=True)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A chunk of the prompt was computed in `seconds`: its first `done` tokens are."""

    column: Index
    done: Count
    seconds: Seconds
    kind: Literal["Prefilled"] = field(default="Prefilled", kw_only=True)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the loop: a pass of the target, and the tokens that it committed. A lane that
    sees no logits leaves gaps empty, one that sees no ids tokens, one that sees no passes rows 0
    and the parts of the seconds out.
    """

    column: Index
    tokens: list[Token]
    origins: list[Origin]
    gaps: list[Gap]  # between the two best scores of each token
    spans: list[Span]  # [origin, text] pairs that became showable
    rows: Count  # computed since the last step
    drafted: Count  # tokens that a draft offered, without those that a grammar forces
    accepted: Count
    seconds: dict[Name, Seconds]  # total, draft, mask, forward, rest
    calls: Count = 0  # passes of the draft
    kind: Literal["Step"] = field(default="Step", kw_only=True)

    def __post_init__(self) -> None:
        tokens = len(self.origins)
        if len(self.tokens) not in (0, tokens) or len(self.gaps) > tokens:
            raise ValueError("a step has more tokens, or gaps, than origins")
        if "total" not in self.seconds:
            raise ValueError("a step does not say how long it took")


@dataclass(frozen=True, slots=True)
class Proposed:
    """What the column's latest pass verified, and what came of it: for display alone, but for the
    depth of a tree. Tokens are texts. Raises ValueError for what does not fit together: a recording
    may hold anything.
    """

    column: Index
    tokens: list[str]  # the forced ones first
    parents: list[Annotated[int, Field(ge=-1, le=2**16)]]  # -1: the text so far; []: a chain
    by: list[Proposer]  # [who, how many] along the tokens; "": the strategy's own drafter
    path: list[Count]  # indices of the tokens that were committed
    chosen: str  # by the target behind them; "": the text had ended
    cut: Count = 0  # last ones of the tokens, which a grammar ruled out before the pass
    scratch: Count = 0  # rows beside them that were never verified, such as lookahead's window
    # How many tokens the constraint allowed behind the text and each verified token; []: all.
    allowed: list[Count] = field(default_factory=list)
    # Of each committed token the most probable ones in its place, and itself; []: not wanted.
    top: list[list[Probable]] = field(default_factory=list)
    kind: Literal["Proposed"] = field(default="Proposed", kw_only=True)

    def __post_init__(self) -> None:
        verified, links = len(self.tokens) - self.cut, self.links
        counts = [count for _, count in self.by]
        if not (
            0 <= self.cut <= len(self.tokens)
            and len(links) == verified
            and all(-1 <= parent < i for i, parent in enumerate(links))
            and all(0 <= i < verified for i in self.path)
            and [links[i] for i in self.path] == [-1, *self.path][: len(self.path)]
            and min(counts, default=1) > 0
            and sum(counts) == len(self.tokens)
            and len(self.allowed) in (0, 1 + verified)
            and len(self.top) in (0, len(self.committed))
        ):
            raise ValueError(f"what was proposed does not fit together: {self!r:.200}")

    @property
    def links(self) -> Sequence[int]:
        """The parents of the verified tokens, also of a chain."""
        return self.parents or range(-1, len(self.tokens) - self.cut - 1)

    @property
    def places(self) -> list[int]:
        """Of each verified token, at which place behind the text it stands: 1, 2, 3, ..."""
        places = list[int]()
        for parent in self.links:
            places.append(1 + (places[parent] if parent >= 0 else 0))
        return places

    @property
    def committed(self) -> list[str]:
        """The texts of the step's tokens, one by one."""
        return [*(self.tokens[i] for i in self.path), *filter(None, [self.chosen])]


@dataclass(frozen=True, slots=True)
class Judged:
    """A text that a JSON Schema let end was checked by an independent validator, off the clock;
    `why` it is not valid, or why nothing can be claimed.
    """

    column: Index
    verdict: Literal["valid", "invalid", "unchecked"]
    why: str
    kind: Literal["Judged"] = field(default="Judged", kw_only=True)


@dataclass(frozen=True, slots=True)
class Served:
    """What is known of an answer that comes from elsewhere, later ones in place of earlier ones:
    whose `clock` the steps' seconds are of, and the tokens of its prompt; 0: not known.
    """

    column: Index
    clock: Literal["own", "server", "network"]
    prompt_tokens: Count = 0
    kind: Literal["Served"] = field(default="Served", kw_only=True)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A column that cannot be held ran alone once more, to show how sure its speed is: the seconds
    that each step behind the first one took, and the tokens that it wrote.
    """

    column: Index
    times: list[Seconds]
    tokens: list[Count]
    kind: Literal["Repeated"] = field(default="Repeated", kw_only=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """The column ended in order. `spans` is text that had been held back. `expected` says what the
    grammar still wanted, if the text was cut before it may end.
    """

    column: Index
    reason: Reason
    spans: list[Span]
    expected: str = ""
    kind: Literal["Finished"] = field(default="Finished", kw_only=True)


@dataclass(frozen=True, slots=True)
class Failed:
    """The column ended with an error, told in one sentence."""

    column: Index
    message: str
    kind: Literal["Failed"] = field(default="Failed", kw_only=True)


Event = (
    Preparing
    | Conditions
    | Started
    | Prepared
    | CostsKnown
    | Decided
    | Prefilled
    | Fed
    | Step
    | Proposed
    | Filled
    | Judged
    | Served
    | Repeated
    | Finished
    | Failed
)


def failures(columns: Iterable[int], error: BaseException) -> list[Failed]:
    """How these columns end with an error; one that users cannot fix is logged."""
    sentence = explain(error)
    return [Failed(column, sentence) for column in columns]


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}

#: Of each kind the names of all fields, in the order of JSON.
_FIELDS = {
    name: dict.fromkeys(["kind", *(f.name for f in fields(kind))]) for name, kind in _KINDS.items()
}


def to_json(event: Event) -> dict[str, Any]:
    """A dict of plain JSON values, with the event's kind under "kind"; its lists are the event's.

    A gap without a runner-up is infinite, which JSON cannot say: it becomes null.
    """
    value = {name: getattr(event, name) for name in _FIELDS[event.kind]}
    if isinstance(event, Step):
        value["gaps"] = [gap if gap < inf else None for gap in event.gaps]
    return value


def from_json(value: Any) -> Event:
    """The event that `to_json` made this dict from, of a process of ours: its fields' values are
    not checked. Raises ValueError for anything else.
    """
    try:
        kind = _KINDS[value["kind"]]
        if kind is Step:
            value = {**value, "gaps": [inf if gap is None else gap for gap in value["gaps"]]}
        return kind(**value)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an event: {value!r:.200}") from error
