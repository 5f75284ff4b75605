"""What the tabs share: files of assets/, words, settings of event handlers, small components."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.web.assets import asset
from backend.web.controller import Controller
from backend.web.offer import Offer
from backend.web.view import View
from page import identity
from page.modules import starting

#: The components of the form by their names in backend/web/form.py.
Fields = dict[str, Any]

#: Our own elements bring their own style.
BARE: dict[str, Any] = {"apply_default_css": False, "padding": False}

#: The page's own functions are answered at once and part of no API. What comes in is validated in
#: one place, by backend/, which trusts nothing.
QUIET: dict[str, Any] = {
    "preprocess": False,
    "queue": False,
    "trigger_mode": "multiple",
    "show_progress": "hidden",
    "api_visibility": "private",
}

#: While one answer is awaited, only the last of the changes counts.
NEWEST: dict[str, Any] = QUIET | {"trigger_mode": "always_last"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a section may use: the controller, what is offered, and components outside the section.

    `fields` are the form's components so far, those of earlier sections
    included. `board` shows races.
    """

    controller: Controller
    offer: Offer
    board: gr.HTML
    fields: Mapping[str, Any]


def own(
    name: str, value: Any = None, script: str = "", layout: str | None = None, **more: Any
) -> gr.HTML:
    """A component of ours. NAME.html, or another layout, is its layout; NAME.js, or another script,
    starts it.
    """
    return gr.HTML(
        value,
        html_template=asset(f"{name}.html") if layout is None else layout,
        js_on_load=starting(script or f"{name}.js"),
        elem_id=name,
        **BARE,
        **more,
    )


#: Labels and lines of help, by component.
WORDS: dict[str, dict[str, Any]] = json.loads(asset("words.json"))


def visitor_of(request: gr.Request) -> str:
    """The visitor whose request it is: a name that only they have, made by the guard
    (identity.py).
    """
    return identity.visitor_of(request.session_hash or "")


def keyed(request: gr.Request, answer: View) -> View:
    """The answer with the key of the visitor's stream, for browsers that need one."""
    return {**answer, "key": identity.key_of(visitor_of(request))}


def answer(name: str, words: str) -> gr.Textbox:
    """What the page says, as plain text below its label (page.css); "" is not there at all."""
    return gr.Textbox(
        lines=1,
        interactive=False,
        placeholder=" ",
        elem_id=name,
        elem_classes="dd-answer",
        **WORDS[words],
    )


def whole_number(name: str, value: int) -> gr.Number:
    return gr.Number(value, precision=0, min_width=110, elem_id=name, **WORDS[name])
