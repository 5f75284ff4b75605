"""What the browser kept: after a reload the form is filled in again, and the race goes on."""

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr

from backend.errors import explain
from backend.web.controller import Controller
from backend.web.examples import examples
from backend.web.form import usable
from backend.web.lineup import text_of
from backend.web.lineup_editor import editor_state
from backend.web.link import form_of, read_link
from backend.web.offer import HUB, Offer
from backend.web.view import View, alert
from page.components import QUIET, Fields, visitor_of
from page.lineup import preview
from page.modules import calling
from page.settings import show_chip

#: Characters of what a browser kept that are read.
MOST = 3 << 20


def keep(
    demo: gr.Blocks,
    fields: Fields,
    offer: Offer,
    controller: Controller,
    header: gr.HTML,
    board: gr.HTML,
) -> None:
    """Have the browser keep the form at every change, and fill it in when the page is loaded.

    If the address holds settings, the form comes from them. The header reports a race of the
    history that is to be opened: the board shows it, else the visitor's last race, else the
    line-up; a form that nobody has changed leaves it the opening race.
    """
    usual = {name: component.value for name, component in fields.items()}

    def restore(request: gr.Request, text: Any, lineup: Any) -> list[Any]:
        found = _read(text)
        values, shown = _form(found.get("form"), tuple(fields)), View()
        try:
            if record := found.get("record"):
                values, shown = controller.open(visitor_of(request), record)
            elif not (found.get("own") and values):
                settings = read_link(str(found.get("link") or ""))
                values = form_of(settings, offer) if settings else values
        except Exception as error:
            shown = alert(offer.public(explain(error)))
        if not values:
            # What is being typed stays. For gradio, skip() of an HTML component that is not loaded
            # yet takes its properties away, so the line-up is given back as it came.
            stays = [lineup if name == "lineup" else gr.skip() for name in fields]
            return [*stays, shown or gr.skip()]
        form = usable(values, usual, offer)
        seen = {"asked": lineup.get("asked")} if isinstance(lineup, dict) else {}
        updates = {name: _update(name, form, offer) for name in fields}
        updates["lineup"] = {**updates["lineup"], **seen}
        if not shown and not _is_opening(form, usual):
            lineup = text_of(form["lineup"])
            shown = preview(
                lineup, offer, _about(form["prompt"], lineup, offer), int(form["max_new_tokens"])
            )
        return [*updates.values(), shown or gr.skip()]

    asked, outputs = [header, fields["lineup"]], [*fields.values(), board]
    begun = calling("kept.js", "keptForm")
    # What runs for the visitor is drawn behind the line-up.
    loaded = demo.load(restore, asked, outputs, js=begun, **QUIET)
    loaded.then(None, js=calling("stream.js", "listen"))
    keeps = calling("kept.js", "keepForm")
    for event in (loaded, header.input(restore, asked, outputs, js=begun, **QUIET)):
        show_chip(event.then, fields)
        event.then(None, list(fields.values()), None, js=keeps)  # who shows the form hears of it
    changes = [_change(component) for component in fields.values()]
    gr.on(changes, None, list(fields.values()), None, js=keeps)


def _about(prompt: Any, lineup: str, offer: Offer) -> str:
    """What an example says that the form still asks."""
    same = (it for it in examples() if (it.prompt, it.lineup(offer)) == (prompt, lineup))
    return next((example.about for example in same), "")


def _is_opening(form: Mapping[str, Any], usual: Mapping[str, Any]) -> bool:
    """Whether the form still asks what the recorded race on a page just opened shows."""
    same = text_of(form["lineup"]) == text_of(usual["lineup"])
    return same and form["prompt"] == usual["prompt"]


def _change(component: Any) -> Any:
    return component.input if isinstance(component, gr.HTML) else component.change


def _read(text: Any) -> Mapping[str, Any]:
    """What the browser says that it kept; {} if it is not what this page writes."""
    try:
        found = json.loads(text[:MOST]) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _form(text: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The values by the fields' names; {} if the text is not a form of this page."""
    try:
        values = json.loads(text) if isinstance(text, str) and text else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, list) or len(values) != len(names):
        return {}
    return dict(zip(names, values, strict=True))


def _update(name: str, form: Mapping[str, Any], offer: Offer) -> Any:
    """The new value of a component, and its choices where they depend on another one."""
    value = form[name]
    if name == "lineup":
        return editor_state(text_of(value), offer)
    runtime = offer.runtime(form["engine"])
    if runtime is not None and name in ("precision", "device"):
        options = runtime.precisions if name == "precision" else runtime.devices
        return gr.update(choices=list(options), value=value)
    if name == "model.hub":
        return gr.update(value=value, visible=form["model"] == HUB)
    return value
