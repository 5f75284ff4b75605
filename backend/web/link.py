"""A race's settings as the query of the page's address, and the form that such a query fills in.

There is no race in a link: whoever opens it sees the form filled in, and presses Run.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlencode

from pydantic import BaseModel

from backend.errors import DerbyError
from backend.models.files import HUB_ID
from backend.strategies.column import Column
from backend.types import ModelSpec, Request, Thinking
from backend.untrusted import read_as
from backend.web.form import Values
from backend.web.offer import HUB, Offer

#: Characters of a link at most: what browsers, servers and proxies all take.
LONGEST = 8_000

#: What may stand in a link several times.
LISTS = ("columns", "stop")

#: How own grammars are named in a column.
OWN = "my own"


class Settings(BaseModel):
    """What a link may say; what else an address says is ignored."""

    prompt: str = ""
    columns: list[str] = []
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: list[str] = []
    ignore_eos: bool = False
    chat: bool = True
    context: int = 0
    heal: bool = True
    thinking: Thinking = ""
    top: int = 0
    model: str = ""
    engine: str = ""
    precision: str = ""
    device: str = ""
    grammar_kind: str = "lark"
    grammar: str = ""


def settings_of(request: Request, columns: Sequence[Column], target: ModelSpec) -> Settings:
    """A race's settings; a grammar of the visitor's own is among them whole."""
    grammars = (column.grammar for column in columns)
    own = next((each for each in grammars if each is not None and each.name == OWN), None)
    sampling = request.sampling
    return Settings(
        prompt=request.prompt,
        columns=[str(column) for column in columns],
        max_new_tokens=request.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        stop=list(request.stop),
        ignore_eos=request.ignore_eos,
        chat=request.chat,
        context=request.context,
        heal=request.heal,
        thinking=request.thinking,
        top=request.top,
        model=target.name,
        engine=target.engine,
        precision=target.precision,
        device=target.device,
        **({"grammar_kind": own.kind, "grammar": own.text} if own else {}),
    )


def link(settings: Settings) -> str:
    """The query, "?" included, without what is as usual; "" if that has more than LONGEST
    characters.
    """
    fields = settings.model_dump(exclude_defaults=True)
    fields["max_new_tokens"] = settings.max_new_tokens
    query = f"?{urlencode(fields, doseq=True)}"
    return query if len(query) <= LONGEST else ""


def read_link(query: str) -> Settings | None:
    """The settings that an address's query says; None if it says none. Raises DerbyError for a
    query that is too long, or a value of another type.
    """
    if len(query) > LONGEST:
        raise DerbyError(f"A link may have {LONGEST:,} characters: shorten it.")
    known = {
        name: values if name in LISTS else values[-1]
        for name, values in parse_qs(query.removeprefix("?"), keep_blank_values=True).items()
        if name in Settings.model_fields
    }
    return read_as(Settings, known, "The link") if known else None


def form_of(settings: Settings, offer: Offer) -> Values:
    """The settings that a link has as values of the page's form. What this page does not offer is
    left out, so the form's usual value applies.
    """
    values: dict[str, Any] = settings.model_dump(exclude_unset=True)
    model, kind = values.pop("model", ""), values.pop("grammar_kind", "lark")
    if columns := values.pop("columns", []):
        values["lineup"] = "\n".join(columns)
    if stop := values.pop("stop", []):
        values["stop"] = "\n".join(s.replace("\n", "\\n").replace("\t", "\\t") for s in stop)
    if grammar := values.pop("grammar", ""):
        values |= {"grammar.kind": kind, "grammar.text": grammar}
    keys = [key for key, label in offer.labels.items() if label == model]
    if keys:
        values["model"] = keys[0]
    elif offer.hub and HUB_ID.fullmatch(model):
        values |= {"model": HUB, "model.hub": model}
    return values | {"measure": False}
