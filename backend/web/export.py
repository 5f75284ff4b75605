"""A visitor's race exported as a link or a file, and one read back from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backend.errors import DerbyError
from backend.export.animation import animation
from backend.export.card import card
from backend.export.curves import curve
from backend.export.tables import csv_table, markdown
from backend.export.trace import trace
from backend.grammar.sources import GrammarSource
from backend.models.files import HUB_ID, model_title
from backend.records.file import as_bytes, from_bytes
from backend.records.link import LONGEST, PASTED, Held, decode, is_link, link
from backend.records.record import RaceRecord, board
from backend.results.figures import NONE, duration, factor, likely, rate
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import gist, headline
from backend.types import Request
from backend.web.form import Values
from backend.web.offer import HUB, Offer
from backend.web.replay_page import record_in, replay_page
from backend.web.view import View

#: Characters of a record that a page reads.
MOST_TEXT = 1 << 22

#: What stands for the rest of a prompt that is cut.
_CUT = "\N{HORIZONTAL ELLIPSIS}"

#: Characters of a prompt in a list of races, and races that stand side by side.
MOST_PROMPT, MOST_BESIDE = 120, 6

#: Characters of a prompt in a table's heading.
MOST_NAME = 48

#: What a link holds, as its reader should know.
_HOLDS: dict[Held, str] = {
    "all": "It holds the whole race.",
    "all but details": "It holds the race without the details of its steps.",
    "settings": "It holds only the settings, because the race is too long: its reader can run the "
    "race again but cannot see this one. Download a file to show it.",
}


@dataclass(frozen=True, slots=True)
class File:
    """What the browser saves: a name, a media type, and the content."""

    name: str
    kind: str
    content: str

    @property
    def view(self) -> View:
        return {"file": [self.name, self.kind, self.content]}


#: The files that a race may be saved as, by what the page or the command line asks for. The page
#: makes a PNG of an SVG itself.
FILES: Mapping[str, tuple[str, str, Callable[[RaceRecord], str]]] = {
    "html": ("race.html", "text/html", replay_page),
    "json": ("race.json", "application/json", lambda record: as_bytes(record).decode()),
    "csv": ("race.csv", "text/csv", csv_table),
    "markdown": ("race.md", "text/markdown", markdown),
    "trace": ("race.trace.json", "application/json", trace),
    "svg": ("race.svg", "image/svg+xml", card),
    "animation": ("race-animated.svg", "image/svg+xml", animation),
    "curve-svg": ("curve.svg", "image/svg+xml", curve),
}


def file_of(record: RaceRecord, form: str) -> File:
    """The race in that form. Raises DerbyError for a form that there is not."""
    if form in ("png", "curve-png"):
        vector = form.replace("png", "svg")
        raise DerbyError(
            f"A picture is written as SVG: ask for {vector}, or save the PNG from the page."
        )
    if form not in FILES:
        raise DerbyError(f"A race cannot be saved as {form!r:.40}; choose from {', '.join(FILES)}.")
    name, kind, write = FILES[form]
    return File(name, kind, write(record))


def link_of(record: RaceRecord, most: int = LONGEST) -> tuple[str, str]:
    """The fragment for the page's address, with `most` characters of text at most, and what it
    holds and where it can be pasted.
    """
    made = link(record, most)
    length, notes = len(made.text), [_HOLDS[made.holds]]
    if length > PASTED:
        notes.append(f"With {round(length, -2):,} characters it is too long for some chat apps.")
    elif made.holds != "settings":
        notes.append("It is short enough for most chats.")
    return made.fragment, " ".join(notes)


def settings_link(record: RaceRecord) -> str:
    """The fragment with which the same race can be run again; "" if that is too long."""
    try:
        return link(record.settings).fragment
    except DerbyError:
        return ""


def read_shared(text: object) -> RaceRecord:
    """The record in a link, a fragment or a file's text. Raises DerbyError for anything else."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise DerbyError(
            f"A race's file may have {MOST_TEXT:,} characters here: replay it on the command line."
        )
    if is_link(text):
        return decode(text)
    if text.lstrip()[:9].lower() == "<!doctype":
        return from_bytes(record_in(text, MOST_TEXT))
    return from_bytes(text.encode(errors="replace"), MOST_TEXT)


def form_of(record: RaceRecord, offer: Offer) -> Values:
    """The record's settings as values of the page's form. What this page does not offer is left
    out, so the form's usual value applies.
    """
    request, sampling = record.request, record.request.sampling
    own = next((g for g in map(_own_grammar, record.columns) if g is not None), None)
    values = {
        "prompt": request.prompt,
        "max_new_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": "\n".join(_one_line(stop) for stop in request.stop),
        "chat": request.chat,
        "context": request.context,
        "heal": request.heal,
        "top": request.top,
        "lineup": "\n".join(str(column) for column in record.columns),
        "engine": record.target.engine,
        "precision": record.target.precision,
        "device": record.target.device,
        "measure": False,
        **_model(record.target.name, offer),
    }
    return values | ({"grammar.kind": own.kind, "grammar.text": own.text} if own else {})


def _own_grammar(column: object) -> GrammarSource | None:
    grammar = getattr(column, "grammar", None)
    return grammar if isinstance(grammar, GrammarSource) and grammar.name == "my own" else None


def _one_line(stop: str) -> str:
    """A stop string as the form writes it."""
    return stop.replace("\n", "\\n").replace("\t", "\\t")


def _model(name: str, offer: Offer) -> Values:
    """The form's choice of the model that the record names; nothing if it is not offered."""
    keys = [key for key, label in offer.labels.items() if label == name]
    if keys:
        return {"model": keys[0]}
    if offer.hub and HUB_ID.fullmatch(name):
        return {"model": HUB, "model.hub": name}
    return {}


def compared(there: RaceRecord, request: Request, here: Scoreboard) -> list[str]:
    """Compare a race that was run again with the record of it: one sentence for each column. [] if
    the request or the line-up differs.
    """
    then = board(there)
    if there.request != request or [str(c) for c in then.columns] != [str(c) for c in here.columns]:
        return []
    return [_compared(then, here, index) for index in range(len(here.columns))]


def _compared(then: Scoreboard, here: Scoreboard, index: int) -> str:
    old, new = then.scores[index], here.scores[index]
    gains = [likely(gain) for gain in (then.gain(index), here.gain(index))]
    if index == here.baseline_index or not (then.gain(index).value and here.gain(index).value):
        gains = [f"{rate(score.tokens_per_second)} tokens/s" for score in (old, new)]
    return f"{here.name(index)}: {_sameness(old, new)}; recorded {gains[0]}, here {gains[1]}"


def about(record: RaceRecord) -> View:
    """A line on a race for a list of races."""
    made, prompt = board(record), gist(record.request.prompt)
    return {
        "made": record.made,
        "prompt": prompt if len(prompt) <= MOST_PROMPT else f"{prompt[: MOST_PROMPT - 1]}{_CUT}",
        "model": f"{model_title(record.target.name)} {record.target.precision}",
        "columns": [_with_speed(made, index) for index in range(len(made.columns))],
        "headline": headline(made),
    }


def _with_speed(made: Scoreboard, index: int) -> str:
    """The column's name, and its speed-up unless the race was too noisy to tell; of a program, the
    time that it took.
    """
    score = made.scores[index]
    if score.fed and score.seconds:
        return f"{made.name(index)} {duration(score.seconds)}"
    ratio = 0.0 if made.noisy or index == made.baseline_index else made.speedup(index)
    return f"{made.name(index)} {factor(ratio)}" if ratio else made.name(index)


def side_by_side(texts: object, public: Callable[[str], str]) -> View:
    """A table of races, given as the text of links. Each column that occurs in any race has a line.
    A cell holds the column's speed-up and speed in that race, and whether its text equals that of
    the first race; what is so of all columns of a race stands in its heading. Raises DerbyError.
    """
    if not isinstance(texts, list) or not 2 <= len(texts) <= MOST_BESIDE:
        raise DerbyError(f"Choose 2 to {MOST_BESIDE} races to see them side by side.")
    records = [read_shared(text) for text in texts]
    boards = [board(record) for record in records]
    lines: dict[str, list[str]] = {}
    headings = ["column"]
    for number, (record, made) in enumerate(zip(records, boards, strict=True), 1):
        cells = [_beside(boards[0], made, index) for index in range(len(made.columns))]
        shared = _shared([remark for _, remark in cells])
        headings.append(_named(record, shared))
        for column, (result, remark) in zip(made.columns, cells, strict=True):
            line = lines.setdefault(str(column), [column.label, *[NONE] * len(boards)])
            own = "" if shared else remark
            line[number] = ", ".join(filter(None, (result, own))) or NONE
    return {
        "headings": headings,
        "lines": [[public(name), *cells] for name, *cells in lines.values()],
    }


def _shared(remarks: Sequence[str]) -> str:
    """The remark on all of a race's columns, which its heading makes; "" where they have others, or
    there is only one.
    """
    return remarks[0] if len(remarks) > 1 and len(set(remarks)) == 1 else ""


def _named(record: RaceRecord, remark: str) -> str:
    """A race in a table's heading: its prompt, when it was run, on what processor, and a remark."""
    prompt = " ".join(gist(record.request.prompt).split())
    shown = prompt if len(prompt) <= MOST_NAME else f"{prompt[: MOST_NAME - 1]}{_CUT}"
    made = f"{record.made[:16].replace('T', ' ')} UTC"
    told = f"{shown} ({', '.join(filter(None, (made, record.machine.processor)))})"
    return f"{told}: {remark}" if remark else told


def _beside(first: Scoreboard, made: Scoreboard, index: int) -> tuple[str, str]:
    """The result of one column in one of several races, and a remark on it."""
    score, gain, setting = made.scores[index], made.gain(index), str(made.columns[index])
    if score.message:
        return "failed", ""
    if score.state == "queued":
        return "", "only its settings are kept"
    parts = [likely(gain)] if gain.value else []
    parts += [f"{rate(score.tokens_per_second)} tokens/s"] if score.tokens_per_second else []
    others = [s for c, s in zip(first.columns, first.scores, strict=True) if str(c) == setting]
    compared = made is not first and others
    return ", ".join(parts), _sameness(others[0], score) if compared else ""


def _sameness(old: Score, new: Score) -> str:
    """Whether two columns of different races wrote the same text, compared up to the end of the
    shorter one.
    """
    count = min(len(old.tokens), len(new.tokens))
    if not count or old.tokenizer != new.tokenizer:
        return "texts not comparable"
    return "same text" if old.tokens[:count] == new.tokens[:count] else "different text"
