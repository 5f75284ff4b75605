"""What programs may ask of a page, on the same line and by the same checks as its visitors."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, Strict

from backend.bench.summary import winner
from backend.errors import DerbyError
from backend.grammar.sources import Kind
from backend.records.record import board
from backend.results import sentences
from backend.results.figures import FIGURES, glossary
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import default_column
from backend.strategies.registry import BASELINE, DEFAULT_COLUMNS, strategies
from backend.types import Thinking
from backend.untrusted import Untrusted, Whole, read_as
from backend.web.benchmark import Benchmarks, Standing
from backend.web.editor import look
from backend.web.export import read_record
from backend.web.form import Values, read_race
from backend.web.offer import Offer
from backend.web.visitors import Frame, Visitors

#: A report on a race or a benchmark: plain JSON values.
Report = dict[str, Any]


class RaceCall(Untrusted):
    """A program's request for a race; "" means the first model, engine, ... of the page."""

    prompt: str = Field(description="The prompt.")
    columns: Annotated[list[str], Strict(strict=False)] = Field(
        list(DEFAULT_COLUMNS),
        description="One column per text: strategy@engine/precision/device:setting=value,... Only "
        "the strategy is required. kv is the baseline.",
    )
    max_new_tokens: Whole = Field(128, description="The most tokens per column.")
    temperature: float = Field(0.0, description="0: always the most likely token.")
    top_p: float = Field(1.0, description="1: off.")
    top_k: Whole = Field(0, description="0: off.")
    min_p: float = Field(0.0, description="0: off.")
    repetition_penalty: float = Field(1.0, description="1: off; more repeats less.")
    seed: Whole = Field(0, description="The same seed gives the same text.")
    stop: list[str] = Field([], description="Strings at which a text ends.")
    ignore_eos: bool = Field(
        default=False, description="Whether a text goes on where the model would end it."
    )
    chat: bool = Field(default=True, description="Whether to use the model's chat template.")
    thinking: Thinking = Field(
        "", description="on or off: whether a reasoning model thinks first; empty: as usual."
    )
    model: str = Field("", description="One of the page's models; empty: the first.")
    engine: str = Field("", description="The engine; empty: the page's first.")
    precision: str = Field(
        "", description="The precision of the weights; empty: the page's default."
    )
    device: str = Field("", description="The device; empty: the engine's first.")
    grammar_kind: Kind = Field("lark", description="lark, json_schema, regex or gbnf.")
    grammar: str = Field("", description="The grammar for columns with grammar=own.")
    top: Whole = Field(
        0,
        description="How many of the most likely tokens to return at each position, with their "
        "probabilities; at most 10.",
    )

    def form(self, offer: Offer) -> Values:
        """The page's form, filled in. Raises DerbyError for an unknown model."""
        first = offer.runtimes[0]
        runtime = offer.runtime(self.engine) or first
        key = _key(self.model, offer)
        named = "columns" in self.model_fields_set
        columns = self.columns if named else usual_columns(offer)
        return self.model_dump() | {
            "lineup": "\n".join(columns),
            "stop": "\n".join(self.stop),
            "model": key,
            "engine": self.engine or first.engine,
            "precision": self.precision or offer.usual_precision(key, runtime.engine)[0],
            "device": self.device or runtime.devices[0],
            "grammar.kind": self.grammar_kind,
            "grammar.text": self.grammar,
            "context": 0,
            "heal": True,
            "measure": False,
        }


def usual_columns(offer: Offer) -> list[str]:
    """The columns of a race that names none, at most as many as a race may have. The baseline is
    always among them.
    """
    ordered = sorted(DEFAULT_COLUMNS, key=lambda name: name != BASELINE)[: offer.most_columns]
    return [name for name in DEFAULT_COLUMNS if name in ordered]


class Api:
    """Each method raises DerbyError, in one sentence, for what the caller can mend."""

    def __init__(self, visitors: Visitors, offer: Offer, benchmarks: Benchmarks) -> None:
        self._visitors = visitors
        self._offer = offer
        self._benchmarks = benchmarks
        self.public = offer.public  # names models as visitors may see them

    def leave(self, visitor: str) -> None:
        """Forget a visitor who has gone, and end what runs for them."""
        self._visitors.leave(visitor)

    async def race(self, visitor: str, asked: Mapping[str, Any]) -> AsyncIterator[Report]:
        """Yield short reports while a race runs, and the full report at its end."""
        values = values_of(self._offer, asked)
        race = await asyncio.to_thread(read_race, values, self._offer)
        async for frame in self._visitors.watch(visitor, race):
            yield self._reported(frame)

    def _reported(self, frame: Frame) -> Report:
        if not frame.over:
            return {"status": self._status(frame)}
        return {"status": "ended", "note": frame.note, **race_report(frame.board, self._offer)}

    def _status(self, frame: Frame) -> str:
        if frame.ahead:
            return f"{frame.ahead} ahead"
        written = sum(score.length for score in frame.board.scores)
        return self._offer.public(frame.board.preparing) or f"{written} tokens written"

    async def benchmark(
        self, visitor: str, prompts: Sequence[str], tokens: int
    ) -> AsyncIterator[Report]:
        """Yield reports on a benchmark of every strategy that may pay off. The last report holds
        all measurements and the winner: the setting with the highest median if its interval lies
        above 1, else KV reuse; "" if the benchmark was stopped or measured nothing.
        """
        columns = _candidates(max(1, self._offer.most_columns - 1))
        values = values_of(self._offer, {"columns": columns, "max_new_tokens": tokens})
        questions = [json.dumps({"category": "own", "turns": [prompt]}) for prompt in prompts]
        found = self._benchmarks.measure(visitor, values, "\n".join(questions), 1)
        async for standing in found:
            yield {"status": standing.status} | (self._winner(standing) if standing.over else {})

    def _winner(self, standing: Standing) -> Report:
        rows = standing.results
        best = winner((row.column, row.speedup, row.interval) for row in rows)
        named = best or default_column(BASELINE).label
        return {
            "best": self._offer.public(named) if rows and standing.phase == "ended" else "",
            "settings": [
                {
                    "column": self._offer.public(row.column),
                    "speedup": row.speedup,
                    "interval": row.interval,
                    "tokens_per_forward": row.tokens_per_forward,
                    "equal": row.equal,
                    "prompts": row.prompts,
                }
                for row in rows
            ],
        }

    async def replay(self, text: str) -> Report:
        """The report on a recorded race: the text of its file."""
        made = board(await asyncio.to_thread(read_record, text))
        return {"status": "ended", "note": "", **race_report(made, self._offer)}

    async def check_grammar(self, kind: str, text: str, sample: str) -> Report:
        """Whether a grammar is sound, and how far a text fits it, a sentence each."""
        sound, fits = await look(kind, text, sample)
        return {"sound": sound, "fits": fits}


def _candidates(most: int) -> Sequence[str]:
    """A column of each strategy that proposes settings to try, each choosing its own."""
    return [name for name, strategy in strategies().items() if strategy.candidates][:most]


def values_of(offer: Offer, asked: Mapping[str, Any]) -> Values:
    """The page's form filled in by a program, which may leave anything out. Raises DerbyError."""
    call: RaceCall = read_as(RaceCall, {"prompt": "", **asked}, "The call")
    return call.form(offer)


def _key(label: str, offer: Offer) -> str:
    """The key of a model, by its label. Raises DerbyError."""
    if not label:
        return "0"
    keys = [key for key, known in offer.labels.items() if known == label]
    if not keys:
        offered = ", ".join(offer.labels.values())
        raise DerbyError(f"There is no model {label!r:.60} on this page; choose from {offered}.")
    return keys[0]


def race_report(board: Scoreboard, offer: Offer) -> Report:
    """A race that has ended, as values and sentences."""
    return {
        "headline": offer.public(sentences.headline(board)),
        "ledger": offer.public(sentences.ledger(board)),
        "columns": [_column(board, index, offer) for index in range(len(board.columns))],
    }


def _column(board: Scoreboard, index: int, offer: Offer) -> Report:
    score, gain = board.scores[index], board.gain(index)
    return {
        "name": offer.public(board.name(index)),
        "setting": offer.public(str(board.columns[index])),
        "state": score.state,
        "message": offer.public(score.message),
        "text": score.text,
        "values": score.values,
        "top": [best for seen in score.proposed_at.values() for best in seen.top],
        "verdict": offer.public(sentences.verdict(board, index)),
        "reason": offer.public(sentences.reason(board, index)),
        "pace": board.pace(index)
        or ("too noisy to tell" if board.noisy else "no difference shown"),
        "interval": gain.interval,
        "figures": {
            figure.name: value
            for figure in FIGURES
            if (value := figure.value(score, board.baseline)) is not None
        },
        "positions": score.positions,
    }


def explained(report: Report) -> str:
    """A race's report as text."""
    lines = [report["headline"]]
    for column in report["columns"]:
        said = "; ".join(filter(None, (column["reason"], column["verdict"], column["message"])))
        lines.append(f"- {column['name']} ({column['setting']}): {said or column['state']}.")
    return "\n".join([*lines, report["ledger"]])


def summed_up(report: Report) -> str:
    """The last report of a benchmark as text."""
    best = f" Best here: {report['best']}." if report["best"] else " The best one is not known."
    lines = [f"{report['status']}{best}"]
    for each in report["settings"]:
        low, high = each["interval"] or (None, None)
        sure = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
        ratio, tokens = each["speedup"], each["tokens_per_forward"]
        speed = f"{ratio:.2f} times as fast as KV reuse{sure}" if ratio else "too short to tell"
        passes = f", {tokens:.2f} tokens per pass" if tokens else ""
        lines.append(
            f"- {each['column']}: {speed}{passes}, text equal on {each['equal']} of "
            f"{each['prompts']} prompts."
        )
    return "\n".join(lines)


def terms() -> str:
    """The strategies, their settings, and the meaning of the figures."""
    lines = ["Strategies (the name is what a column begins with):"]
    for name, strategy in strategies().items():
        lines.append(f"- {name} ({strategy.title}): {strategy.description}")
        lines += [f"  - {setting.name}: {setting.help}" for setting in strategy.settings]
    lines.append("Figures:")
    lines += [f"- {title}, {unit}: {text}" for title, unit, text in glossary()]
    return "\n".join(lines)
