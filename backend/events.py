"""What happens in a race, as plain values: ints, floats, strings and lists, with a JSON round trip.

Every event names its column by index; the page, the command line, the bench and recordings all
read this one stream.
"""

from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from math import inf
from typing import Any, Literal, get_args

from backend.errors import Cause, cause_of, explain

Reason = Literal[
    "end of text",
    "stop string",
    "token limit",
    "column limit",
    "context full",
    "end of program",
    "end of GPU time",
    "stopped",
]

#: Reasons from outside: the column had more to write.
CUT_SHORT = ("stopped", "end of GPU time")


@dataclass(frozen=True, slots=True)
class Preparing:
    """The race waits for something: a download, a conversion, a model being loaded."""

    text: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """What else used the machine while the columns ran, as shares of its time: other programs, the
    page's own process, and what its host gave to others (steal). `cores` is how many cores' worth
    of time the race itself might use. So many models were `loaded` for the race, and so many were
    `cold`: widths of passes were left that they had never computed.
    """

    cores: float
    others: float
    page: float
    stolen: float
    loaded: int = 0
    cold: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """The race runs on this machine of a cluster; `name` is its own, the rest as in
    records.place.Machine. `note` says what of the race's past is not there any more, "" nothing.
    """

    name: str
    processor: str
    cores: float
    memory: int
    system: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """The column begins. `model` says what runs where; `spec` the same by part, as in
    types.ModelSpec: name, engine, precision, device ({}: unknown). `tokenizer`: columns with the
    same fingerprint mean the same by a token id ("": unknown, and tokens cannot be compared).
    `keeps_text` False: it promises the distribution of the plain text, and not that text.
    """

    column: int
    prompt_tokens: int
    model: str
    tokenizer: str = ""
    spec: dict[str, str] = field(default_factory=dict)
    keeps_text: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """A grammar was compiled, or an earlier cache fetched, in `seconds`: it holds the first
    `reused` tokens of the text, which need not be computed. `compiled`: the grammar's share.
    """

    column: int
    reused: int
    seconds: float
    compiled: float = 0.0


@dataclass(frozen=True, slots=True)
class CostsKnown:
    """What the column's passes are known to cost, in seconds: over each of `widths` rows, on top
    when the width changes, and for a call of the draft (0: it has none). `context_slope`: see
    PassCosts.
    """

    column: int
    widths: list[int]
    passes: list[float]
    width_change: float
    draft: float
    context_slope: list[float] = field(default_factory=lambda: [0.0, 0.0])


@dataclass(frozen=True, slots=True)
class LoadKnown:
    """What passes that serve several requests were measured to cost, on the column's model: of each
    number of `requests`, the seconds of a pass over each of `widths` rows of each of them, and
    PassCosts' `context_slope`.
    """

    column: int
    requests: list[int]
    widths: list[int]
    passes: list[list[float]]
    context_slopes: list[list[float]]


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided for the column, whenever it changes: `settings` in force instead of the
    column's own, the speed-up that is `predicted` (0: unknown), why in a sentence, what was
    `declined`, a sentence each, and whether all that is left is `plain` decoding.
    """

    column: int
    settings: dict[str, Any]
    predicted: float
    why: str
    declined: list[str]
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """The column goes on after these tokens of its answer; `shifts` as in types.AnswerSoFar."""

    column: int
    tokens: list[int]
    spans: list[list[str]]
    shifts: list[list[int]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Fed:
    """Fixed text of a program was appended: `tokens` of it, to be computed by the next passes.

    Getting the next slot ready, its grammar included, took `seconds`.
    """

    column: int
    tokens: int
    spans: list[list[str]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Filled:
    """A slot of a program has its value. `spans` is text that had been held back."""

    column: int
    name: str
    value: str
    spans: list[list[str]]


@dataclass(frozen=True, slots=True)
class Shifted:
    """The context was full after `at` tokens of the answer: `sink` tokens stayed, the `dropped`
    ones behind them, which read `text`, were forgotten.
    """

    column: int
    at: int
    sink: int
    dropped: int
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Saved:
    """The column's state is on disk under this id."""

    column: int
    snapshot: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A chunk of the prompt was computed: `done` of `total` tokens, in `seconds`."""

    column: int
    done: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: one target forward pass, and what it committed.

    tokens, origins, gaps: one entry per committed token; a gap is the distance between the two
    best scores there. spans: [origin, text] pairs that became showable. rows: token rows
    computed since the last step. drafted, accepted: tokens of a draft offered to and passed by
    verification; those that a grammar forced are counted by their origin alone. seconds: total,
    draft, mask, forward, rest. masks: what computing each mask took, in seconds, most of it while
    the forward pass ran. calls: passes of the draft. overlaps: 1 - TV of the target's and the
    draft's distribution, of each row where both are at hand.

    A lane that sees no logits leaves gaps empty, one that sees no ids tokens, one that sees no
    passes rows 0 and the parts of the seconds out.
    """

    column: int
    tokens: list[int]
    origins: list[str]
    gaps: list[float]
    spans: list[list[str]]
    rows: int
    drafted: int
    accepted: int
    seconds: dict[str, float]
    masks: list[float] = field(default_factory=list)
    calls: int = 0
    overlaps: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Proposed:
    """What the pass of the column's latest step was given to verify, and what came of it: for
    display alone, so a reader may leave it out. Tokens are told by their own texts.

    tokens: those proposed, the forced ones first; the last `cut` of them were ruled out by a
    grammar before the pass. parents: the index of the token before each that was verified, -1 for
    the text so far; []: a chain. by: [who, how many] along the tokens; "": the strategy's own
    drafter. path: indices of those that were committed. chosen: the token that the target chose
    behind them; "": none, for the text had ended. window: lookahead's scratch tokens, level by
    level. allowed: how many tokens the constraint allowed behind the text so far and behind each
    token that was verified; []: all. top: for each committed token the most probable ones in its
    place, as [text, probability], and itself where it is none of them; []: not asked for.

    Raises ValueError for what does not fit together: a recording may hold anything.
    """

    column: int
    tokens: list[str]
    parents: list[int]
    by: list[list[Any]]
    path: list[int]
    chosen: str
    cut: int = 0
    window: list[list[str]] = field(default_factory=list)
    allowed: list[int] = field(default_factory=list)
    top: list[list[list[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        verified = len(self.tokens) - self.cut
        parents = self.parents or range(-1, verified - 1)
        counts = [count for _, count in self.by]
        if not (
            0 <= self.cut <= len(self.tokens)
            and len(parents) == verified
            and all(-1 <= parent < i for i, parent in enumerate(parents))
            and all(0 <= i < verified for i in self.path)
            and [parents[i] for i in self.path] == [-1, *self.path][: len(self.path)]
            and min(counts, default=1) > 0
            and sum(counts) == len(self.tokens)
            and len(self.allowed) in (0, 1 + verified)
            and len(self.top) in (0, len(self.committed))
        ):
            raise ValueError(f"what was proposed does not fit together: {self!r:.200}")

    @property
    def committed(self) -> list[str]:
        """The texts of the step's tokens, one by one."""
        return [*(self.tokens[i] for i in self.path), *filter(None, [self.chosen])]


@dataclass(frozen=True, slots=True)
class Judged:
    """A text that the grammar let end was checked by an independent validator, off the clock.

    `why` it is not valid, at which JSON `pointer` of it, or why nothing can be claimed. `later` are
    pointers to the parts of the schema that the grammar left to this check; `forbidden` says that
    an invalid text breaks what the grammar did hold, so that its engine let it through.
    """

    column: int
    verdict: Literal["valid", "invalid", "unchecked"]
    pointer: str
    why: str
    later: list[str] = field(default_factory=list)
    forbidden: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """What a server tells of itself: with the first step whose `clock` the steps' seconds are of,
    its own or the network's, and what an exchange without work takes in seconds; at the end also
    the tokens of prompt and answer (0: not told), whether `each` step was one of them, where steps
    did not say, and of all of them how many a draft offered and the target accepted.

    What its counters tell: `rounds` with a draft, tokens accepted in each of a draft's `places`,
    and what a pass wrote of late (`per_pass`, 0: not told). `others`: they used it too, so rounds,
    places, drafted and accepted are the server's of that time, not the request's.
    """

    column: int
    clock: Literal["server", "network"]
    round_trip: float
    prompt_tokens: int = 0
    tokens: int = 0
    each: bool = False
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    places: list[int] = field(default_factory=list)
    per_pass: float = 0.0
    others: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The column ended in order. `spans` is text that had been held back. `expected` says what the
    grammar still wanted, if the text was cut before it may end.
    """

    column: int
    reason: Reason
    spans: list[list[str]]
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The column ended with an error, told in one sentence, and whose fault that is."""

    column: int
    message: str
    cause: Cause = "request"


Event = (
    Preparing
    | Placed
    | Conditions
    | Started
    | Prepared
    | CostsKnown
    | LoadKnown
    | Decided
    | Resumed
    | Prefilled
    | Fed
    | Step
    | Proposed
    | Filled
    | Shifted
    | Saved
    | Judged
    | Served
    | Finished
    | Failed
)


def failures(columns: Iterable[int], error: BaseException) -> list[Failed]:
    """How these columns end with an error; one that users cannot fix is logged."""
    sentence, cause = explain(error), cause_of(error)
    return [Failed(column, sentence, cause) for column in columns]


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}

#: Of each kind the names of all fields, in order, and of those without a default.
_FIELDS = {kind: dict.fromkeys(f.name for f in fields(kind)).keys() for kind in _KINDS.values()}
_NEEDED = {
    kind: frozenset(
        f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING
    )
    for kind in _KINDS.values()
}


def to_json(event: Event) -> dict[str, Any]:
    """A dict of plain JSON values, with the event's kind under "kind"; its lists are the event's.

    A gap without a runner-up is infinite, which JSON cannot say: it becomes null.
    """
    kind = type(event)
    value = {"kind": kind.__name__, **{name: getattr(event, name) for name in _FIELDS[kind]}}
    if isinstance(event, Step):
        value["gaps"] = [gap if gap < inf else None for gap in event.gaps]
    return value


def from_json(value: Any) -> Event:
    """The event that `to_json` made this dict from; what an earlier version did not say yet has its
    default. Raises ValueError for anything else.
    """
    kind = _KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
    arguments = {name: v for name, v in value.items() if name != "kind"} if kind else {}
    if kind is None or not _NEEDED[kind] <= arguments.keys() <= _FIELDS[kind]:
        raise ValueError(f"not an event: {value!r:.200}")
    if kind is Step:
        arguments["gaps"] = [inf if gap is None else gap for gap in arguments["gaps"]]
    return kind(**arguments)
