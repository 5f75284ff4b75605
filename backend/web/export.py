"""The race on show as a file to be saved, and as a line of the browser's list of races."""

from collections.abc import Callable, Mapping
from zlib import crc32

from backend.errors import DerbyError
from backend.export.picture import picture_of
from backend.export.tables import csv_table, markdown
from backend.models.files import model_title
from backend.records.file import as_bytes, from_bytes
from backend.records.record import RaceRecord, board
from backend.results.figures import duration, factor, likely, rate
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import gist, headline
from backend.web.view import View

#: Bytes of a record that a page reads.
MOST_BYTES = 1 << 22

#: Characters of a prompt in a list of races.
MOST_PROMPT = 120

#: The forms of a race by what the page or the command line asks for: a file's name, its media type,
#: and what writes it.
FORMS: Mapping[str, tuple[str, str, Callable[[RaceRecord], str]]] = {
    "json": ("race.json", "application/json", lambda record: as_bytes(record).decode()),
    "csv": ("race.csv", "text/csv", csv_table),
    "markdown": ("race.md", "text/markdown", markdown),
    "svg": ("race.svg", "image/svg+xml", picture_of),
}


def file_of(record: RaceRecord, form: str) -> tuple[str, str, str]:
    """Name, media type and content of the race's file in that form. Raises DerbyError for a form
    that there is not.
    """
    if form not in FORMS:
        raise DerbyError(f"A race cannot be saved as {form!r:.40}; choose from {', '.join(FORMS)}.")
    name, kind, write = FORMS[form]
    return name, kind, write(record)


def read_record(text: object) -> RaceRecord:
    """The record in a file's text. Raises DerbyError for anything else."""
    if not isinstance(text, str):
        raise DerbyError("This is not a record of a race: choose a file that was saved as JSON.")
    return from_bytes(text.encode(errors="replace"), MOST_BYTES)


def about(record: RaceRecord) -> View:
    """A race for a list of races: what was asked, of what model, and what each column came to."""
    made, prompt = board(record), gist(record.request.prompt)
    cut = f"{prompt[: MOST_PROMPT - 1]}\N{HORIZONTAL ELLIPSIS}"
    return {
        "made": record.made,
        "prompt": prompt if len(prompt) <= MOST_PROMPT else cut,
        "model": f"{model_title(record.target.name)} {record.target.precision}",
        "columns": [_result(made, index) for index in range(len(made.columns))],
        "headline": headline(made),
    }


def _result(made: Scoreboard, index: int) -> View:
    """A column: its setting and name; its speed-up, unless the race was too noisy to tell, or of a
    program the time that it took; all that is known of its speed; a digest of its tokens, "" where
    there are none.
    """
    score, gain = made.scores[index], made.gain(index)
    ratio = 0.0 if made.noisy or index == made.baseline_index else made.speedup(index)
    parts = [likely(gain)] if gain.value else []
    parts += [f"{rate(score.tokens_per_second)} tokens/s"] if score.tokens_per_second else []
    brief = factor(ratio) if ratio else ""
    written = f"{score.tokenizer} {score.tokens}"
    return {
        "setting": str(made.columns[index]),
        "name": made.name(index),
        "brief": duration(score.seconds) if score.fed and score.seconds else brief,
        "result": "failed" if score.message else ", ".join(parts),
        "text": f"{crc32(written.encode()):08x}" if score.tokens else "",
    }
