"""What a person or a program asks for, as one form, and the race that it makes. None of it is
trusted.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, Field

from backend.errors import DerbyError, check_range
from backend.grammar.sources import MAX_BYTES, MAX_PUBLIC_BYTES, GrammarSource, Kind, shipped
from backend.models.files import is_path
from backend.offer import Offer
from backend.programs.parser import is_program, parse_program
from backend.racing.models import usual_spec
from backend.racing.race import Race
from backend.strategies.column import Column, parse_column, settings_of
from backend.strategies.registry import strategies, usual_columns
from backend.strategies.settings import OWN, values_of
from backend.types import ModelSpec, Request, Sampling, Thinking
from backend.untrusted import read_as

_ASSETS = Path(__file__).resolve().parents[1] / "assets"

MAX_STOPS, MAX_STOP = 16, 200

#: Characters of a link's query: servers and proxies take requests of 8 KiB, and often no more.
MAX_QUERY = 8_000

#: A line that names the visitor's grammar: nobody else's grammar is read.
_NAMES_OWN = re.compile(rf"[:,]\s*grammar\s*=\s*{OWN}\s*(,|$)")

KINDS = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, the line-up to race on it, and `tokens` to write at most."""

    label: str
    prompt: str
    lineup: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Preset:
    """A line-up that answers a question, and a line on what it shows."""

    title: str
    about: str
    lineup: str


def _read(name: str) -> Any:
    return json.loads((_ASSETS / name).read_text(encoding="utf-8"))


EXAMPLES = tuple(Example(**entry) for entry in _read("examples.json"))
PRESETS = tuple(Preset(**entry) for entry in _read("presets.json"))


def _field(default: Any, title: str, description: str = "") -> Any:
    return Field(default=default, title=title, description=description)


class Form(BaseModel):
    """A race as its settings, with the page's defaults. The page, the API and refusals call each
    field by its title. Of model, engine, precision and device "" is the usual one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    prompt: str = _field(EXAMPLES[0].prompt, "Prompt", "What the model is asked")
    lineup: Annotated[str, Len(0, 4_000)] = _field(
        "", "Line-up", "A column a line, such as kv@openvino/int8 or lookup:k=4; none: usual ones"
    )
    max_new_tokens: int = _field(EXAMPLES[0].tokens, "Max new tokens")
    temperature: float = _field(0.0, "Temperature", "0: always the likeliest token")
    top_k: int = _field(0, "Top-k", "0: off")
    top_p: float = _field(1.0, "Top-p", "1: off")
    min_p: float = _field(0.0, "Min-p", "0: off")
    repetition_penalty: float = _field(1.0, "Repetition penalty", "1: off")
    seed: int = _field(0, "Seed")
    stop: Annotated[str, Len(0, MAX_STOPS * (MAX_STOP + 1))] = _field(
        "", "Stop strings", "One a line; \\n is a line break"
    )
    ignore_eos: bool = _field(
        title="Fixed length", default=False, description="Write on after the end of the text"
    )
    chat: bool = _field(title="Chat template", default=True)
    context: int = _field(0, "Context limit", "Tokens; 0: the model's own")
    thinking: Thinking = _field("", "Thinking", "Of models that can switch it")
    top: int = _field(5, "Likely tokens", "How many to note at each place")
    model: str = _field("", "Model")
    engine: str = _field("", "Engine")
    precision: str = _field("", "Precision")
    device: str = _field("", "Device")
    grammar_kind: Kind = _field("lark", "Grammar kind", "Of the grammar for grammar=own")
    grammar_text: str = _field('start: "yes" | "no"', "Grammar", "For columns with grammar=own")


def read_form(values: Mapping[str, Any]) -> Form:
    """The form that these values make. Raises DerbyError, in one sentence, for the first flaw."""
    return read_as(Form, dict(values), "The form")


def read_race(values: Mapping[str, Any] | Form, offer: Offer) -> Race:
    """The race that a form asks for. Raises DerbyError, in one sentence, for the first flaw."""
    form, limits = values if isinstance(values, Form) else read_form(values), offer.limits
    check_range("max new tokens", form.max_new_tokens, 1, limits.tokens)
    if len(form.prompt) > limits.prompt_characters:
        raise DerbyError(
            f"The prompt of {len(form.prompt):,} characters is too long: shorten it to "
            f"{limits.prompt_characters:,}."
        )
    if is_program(form.prompt):
        parse_program(form.prompt)  # a flaw in it is the prompt's, not each column's
    target = _target(form, offer)
    sampling = Sampling(
        form.temperature,
        form.top_k,
        form.top_p,
        form.seed,
        form.min_p,
        form.repetition_penalty,
    )
    request = Request(
        form.prompt,
        form.max_new_tokens,
        sampling,
        form.chat,
        _stops(form.stop),
        form.context,
        thinking=form.thinking,
        top=form.top,
        ignore_eos=form.ignore_eos,
    )
    return Race(request, _columns(form, offer, target), target)


def form_of(request: Request, columns: Sequence[Column], target: ModelSpec) -> dict[str, Any]:
    """The values of a form that asks for this race again; of own grammars it has room for one."""
    asked, place = asdict(request), asdict(target)
    asked |= asked["sampling"] | {part: place[part] for part in ("engine", "precision", "device")}
    asked |= {"model": target.name, "lineup": "\n".join(map(str, columns))}
    escaped = (text.replace("\n", "\\n").replace("\t", "\\t") for text in request.stop)
    asked["stop"] = "\n".join(escaped)
    for grammar in filter(None, (column.grammar for column in columns)):
        if shipped().get(grammar.name) != grammar:
            asked |= {"grammar_kind": grammar.kind, "grammar_text": grammar.text}
    return {name: asked.get(name, usual) for name, usual in Form().model_dump().items()}


def _target(form: Form, offer: Offer) -> ModelSpec:
    engine = form.engine or offer.engines[0].name
    offer.require_place(engine, form.precision, form.device)
    name = offer.require_model(form.model or offer.models[0])
    spec = ModelSpec(
        name, engine, form.precision, form.device or offer.options("device", engine)[0]
    )
    if form.precision:
        return spec
    if name not in offer.models:  # its size is known once the worker has fetched it
        return replace(spec, precision=offer.options("precision", engine)[0])
    return usual_spec(spec, lambda _: None)


def usual_lineup(model: str, offer: Offer) -> str:
    """The line-up of whoever names none, on the model of that name; "": the first one."""
    named = model if model and not is_path(model) else offer.models[0]  # a page takes no paths
    return "\n".join(usual_columns(named))


def _columns(form: Form, offer: Offer, target: ModelSpec) -> tuple[Column, ...]:
    lineup = form.lineup or usual_lineup(target.name, offer)
    pairs = enumerate(map(str.strip, lineup.split("\n")), start=1)
    lines = [(number, line) for number, line in pairs if line]
    if not 1 <= len(lines) <= offer.limits.columns:
        raise DerbyError(
            f"The line-up has {len(lines)} columns; a race has 1 to {offer.limits.columns} here."
        )
    columns: list[Column] = []
    for number, line in lines:
        try:
            columns.append(_column(line, form, offer, target))
        except DerbyError as error:
            raise DerbyError(f"Line {number} of the line-up: {error}") from error
    models = {column.target(target) for column in columns if column.strategy.loads}
    if len(models) > offer.limits.models:
        raise DerbyError(
            f"The columns run on {len(models)} models; a race has {offer.limits.models} here: "
            "remove some."
        )
    return tuple(columns)


def _column(line: str, form: Form, offer: Offer, target: ModelSpec) -> Column:
    own = None
    if _NAMES_OWN.search(line):
        own = own_grammar(form.grammar_kind, form.grammar_text, offer)
    column = parse_column(line, own)
    offer.require_column(column, target)
    if own and column.strategy.library is not None and not offer.unlisted:
        # Libraries compile it in this program's worker, where nothing could end them.
        raise DerbyError(
            f"{column.title} takes no grammar of your own on this page: name a ready-made one, "
            "such as grammar=person, or choose a column such as grammar."
        )
    return column


def own_grammar(kind: Kind, text: str, offer: Offer) -> GrammarSource:
    """The visitor's grammar. Raises DerbyError for none, and for one that is too long here."""
    source = GrammarSource(kind, text, "my own")
    check_range("grammar size", source.bytes, 1, MAX_BYTES if offer.unlisted else MAX_PUBLIC_BYTES)
    return source


def _stops(text: str) -> tuple[str, ...]:
    """Stop strings, one per line. A typed backslash-n means a line break, backslash-t a tab."""
    lines = tuple(line for line in text.splitlines() if line)
    if len(lines) > MAX_STOPS or any(len(line) > MAX_STOP for line in lines):
        raise DerbyError(
            f"There are {len(lines)} stop strings of up to {max(map(len, lines))} characters; "
            f"{MAX_STOPS} of up to {MAX_STOP} are allowed."
        )
    return tuple(line.replace("\\n", "\n").replace("\\t", "\t") for line in lines)


def query_of(values: Mapping[str, Any]) -> str:
    """The query of an address with these settings: what differs from the defaults, but for numbers
    that were cleared (None). Raises DerbyError for one that is too long to be sent.
    """
    usual = Form()
    changed = {n: v for n, v in values.items() if v is not None and v != getattr(usual, n)}
    query = urlencode(changed)
    if len(query) > MAX_QUERY:
        raise DerbyError(
            f"The link would have {len(query):,} characters, and {MAX_QUERY:,} are allowed: "
            "shorten the prompt or the grammar, or send the race's file."
        )
    return query


def form_from(query: Mapping[str, str]) -> Form:
    """The form that an address's query fills in; what else it says is ignored. Raises DerbyError
    for a value of another type.
    """
    return read_form({name: value for name, value in query.items() if name in Form.model_fields})


def settings_table() -> list[tuple[str, str, str]]:
    """Each setting of each strategy: the strategy's name, the setting with its usual value, and
    what it does, with the values that it may have. A strategy's own line has no setting.
    """
    lines: list[tuple[str, str, str]] = []
    for name, strategy in strategies().items():
        lines.append((name, "", strategy.description))
        for setting in settings_of(strategy).values():
            usual = setting.text(setting.default)
            values = values_of(setting)
            text = f"{setting.help.removesuffix('.')} ({values})." if values else setting.help
            lines.append((name, f"{setting.name}={usual}", text))
    return lines
