"""Makes a race of what a visitor's browser sent. None of it is trusted.

Fields have the page's names: "prompt", "lineup", "temperature", ... The line-up is what its editor
sends (lineup.py). The race's model is given by its key, or by `HUB` and an id in "model.hub". The
visitor's own grammar is in "grammar.kind" and "grammar.text".
"""

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from annotated_types import Len
from pydantic import BeforeValidator, Field

from backend.errors import DerbyError, check_range
from backend.grammar.sources import GrammarSource, Kind
from backend.models.files import HUB_ID
from backend.programs.parser import is_program, parse_program
from backend.racing.race import Race
from backend.types import MAX_NEW_TOKENS, ModelSpec, Request, Sampling, Thinking
from backend.untrusted import Untrusted, Whole, read_as
from backend.web.lineup import MAX_TEXT, Lineup, text_of
from backend.web.offer import HUB, Offer

KINDS = get_args(Kind)
MAX_STOPS = 16
MAX_STOP = 200

Values = Mapping[str, Any]

#: A text field, which may be left out.
_Text = BeforeValidator(lambda value: "" if value is None else value)


class Form(Untrusted):
    """The fields of a race, each of its type; `read_race` looks at what they say."""

    prompt: Annotated[str, _Text] = Field("", title="The prompt")
    lineup: Annotated[str, BeforeValidator(text_of), _Text, Len(0, MAX_TEXT)] = Field(
        "", title="The line-up"
    )
    max_new_tokens: Whole = Field(title="max new tokens")
    temperature: float = Field(title="temperature")
    top_k: Whole = Field(title="top-k")
    top_p: float = Field(title="top-p")
    min_p: float = Field(title="min-p")
    repetition_penalty: float = Field(title="repetition penalty")
    seed: Whole = Field(title="seed")
    stop: Annotated[str, _Text, Len(0, MAX_STOPS * (MAX_STOP + 1))] = Field(
        "", title="The stop strings"
    )
    ignore_eos: bool = Field(title="fixed length")
    chat: bool = Field(title="chat template")
    context: Whole = Field(title="context limit")
    heal: bool = Field(title="token healing")
    thinking: Thinking = Field(title="thinking")
    top: Whole = Field(title="most likely tokens")
    measure: bool = Field(title="measuring pass costs again")
    model: str = Field(title="the model")
    hub: Any = Field("", alias="model.hub")
    engine: str = Field(title="the engine")
    precision: str = Field(title="the precision")
    device: str = Field(title="the device")
    # Read if a column asks for it.
    grammar_kind: Any = Field(None, alias="grammar.kind")
    grammar_text: Any = Field(None, alias="grammar.text")


class _OwnGrammar(Untrusted):
    kind: Kind = Field(title="The grammar kind")
    text: Annotated[str, _Text] = Field(title="The grammar")


def read_race(values: Values, offer: Offer) -> Race:
    """The race that the form asks for. Raises DerbyError, in one sentence, for the first flaw."""
    form = _form(values)
    target = ModelSpec(_model(form, offer), form.engine, form.precision, form.device)
    offer.require_target(target)
    _require_short("The prompt", form.prompt, offer)
    if is_program(form.prompt):
        parse_program(form.prompt)  # a flaw in it is the prompt's, not each column's
    lineup = Lineup.read(form.lineup, offer)
    asked = lineup.asks_for_own
    own = read_grammar(form.grammar_kind, form.grammar_text) if asked else None
    request = Request(
        prompt=form.prompt,
        max_new_tokens=read_tokens(form.max_new_tokens, offer),
        sampling=Sampling(
            form.temperature,
            form.top_k,
            form.top_p,
            form.seed,
            form.min_p,
            form.repetition_penalty,
        ),
        chat=form.chat,
        stop=_stops(form.stop),
        context=form.context,
        heal=form.heal,
        thinking=form.thinking,
        top=form.top,
        ignore_eos=form.ignore_eos,
    )
    return Race(request, lineup.race(offer, target, own), target)


def wants_measuring(values: Values) -> bool:
    """Whether to measure the times of passes before the race. Raises DerbyError if unclear."""
    return _form(values).measure


def _form(values: Values) -> Form:
    return read_as(Form, dict(values), "The form")


def read_tokens(value: Any, offer: Offer) -> int:
    """How many tokens to write. Raises DerbyError for what is not from 1 to the page's limit."""
    tokens = read_whole("max new tokens", value)
    check_range("max new tokens", tokens, 1, min(offer.limits.tokens, MAX_NEW_TOKENS))
    return tokens


def read_whole(name: str, value: Any) -> int:
    """Read a whole number that a browser or a program sent. Raises DerbyError for anything else."""
    return read_as(Whole, value, name)


def read_grammar(kind: Any, text: Any) -> GrammarSource:
    """A visitor's own grammar. Raises DerbyError for anything else."""
    own: _OwnGrammar = read_as(_OwnGrammar, {"kind": kind, "text": text})
    return GrammarSource(own.kind, own.text, "my own")


def _require_short(name: str, text: str, offer: Offer) -> None:
    limit = offer.limits.prompt_characters
    if len(text) > limit:
        raise DerbyError(f"{name} of {len(text):,} characters is too long: {limit:,} are allowed.")


def _model(form: Form, offer: Offer) -> str:
    """The model's name for the engines: an operator's model by its key, or a Hub id."""
    if form.model == HUB and offer.hub:
        hub = form.hub.strip() if isinstance(form.hub, str) else ""
        if len(hub) > 200 or not HUB_ID.fullmatch(hub):
            raise DerbyError(
                f"The model's Hub id is {hub!r:.60}; it must look like owner/model, in letters, "
                "digits, '.', '_' and '-'."
            )
        return hub
    if form.model not in offer.labels:
        raise DerbyError(
            f"There is no model {form.model!r:.60} on this page; choose one from the list."
        )
    return offer.models[int(form.model)]


def _stops(text: str) -> tuple[str, ...]:
    """Read stop strings, one per line. A typed backslash-n means a line break,
    backslash-t a tab.
    """
    lines = tuple(line for line in text.splitlines() if line)
    if len(lines) > MAX_STOPS or any(len(line) > MAX_STOP for line in lines):
        raise DerbyError(
            f"There are {len(lines)} stop strings of up to {max(map(len, lines))} characters; "
            f"{MAX_STOPS} of up to {MAX_STOP} are allowed."
        )
    return tuple(line.replace("\\n", "\n").replace("\\t", "\t") for line in lines)


#: Values that only make sense together; every other one stands alone.
_TOGETHER = (
    ("engine", "precision", "device", "model", "model.hub"),
    ("lineup", "grammar.kind", "grammar.text"),
)


def usable(values: Values, usual: Values, offer: Offer) -> Values:
    """The form with those of `values` that a race could be run with here, else the `usual` ones:
    for forms that a browser kept, or that came in an address.
    """
    grouped = {name for group in _TOGETHER for name in group}
    form = dict(usual)
    for group in (*_TOGETHER, *((name,) for name in usual if name not in grouped)):
        tried = form | {name: values[name] for name in group if name in values and name in usual}
        # A prompt or a line-up that is not there yet is nobody's mistake.
        checked = tried | ({} if tried["prompt"] else {"prompt": "-"})
        try:
            read_race(checked, offer)
        except DerbyError:
            continue
        form = tried
    return form
