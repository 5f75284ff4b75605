"""What the tabs share: files of assets/, words, settings of event handlers, small components."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from backend.text import Tokenizer
from backend.web.controller import Controller
from backend.web.offer import HUB, Offer

#: The components of the form by their names in backend/web/form.py.
Fields = dict[str, Any]

#: Our own elements bring their own style.
BARE: dict[str, Any] = {"apply_default_css": False, "padding": False}

#: Small changes of the page are answered at once and part of no API.
QUIET: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}

#: What comes in is validated in one place, by backend/, which trusts nothing.
UNREAD: dict[str, Any] = {
    "preprocess": False,
    "concurrency_limit": None,
    "trigger_mode": "multiple",
    "show_progress": "hidden",
    "api_visibility": "private",
}

#: While one answer is awaited, only the last of the changes counts.
NEWEST: dict[str, Any] = UNREAD | {"trigger_mode": "always_last"}

FROM_HUB = ("from the Hugging Face Hub", HUB)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a tab may use: who answers, what is offered, and components outside of the tab.

    `fields` are the form's components so far, those of earlier tabs included. `tokenizer` is called
    when it is first needed. `board` is where races are shown.
    """

    controller: Controller
    offer: Offer
    tokenizer: Callable[[], Tokenizer]
    board: gr.HTML
    fields: Mapping[str, Any]


def asset(name: str) -> str:
    """The text of a file in assets/."""
    folder = Path(__file__).resolve().parent.parent / "assets"
    return (folder / name).read_text(encoding="utf-8")


#: Labels and lines of help, by component.
WORDS: dict[str, dict[str, Any]] = json.loads(asset("words.json"))


def whole_number(name: str, value: int) -> gr.Number:
    return gr.Number(value, precision=0, min_width=110, elem_id=name, **WORDS[name])


def model_choice(
    name: str, choices: list[tuple[str, str]], value: str, *, label: str, info: str
) -> Fields:
    """A list of models whose last entry opens a box for a Hub id."""
    choice = gr.Dropdown(choices, value=value, label=label, info=info, min_width=140)
    hub = gr.Textbox(label=f"{label}: Hub id", placeholder="owner/model", visible=False)
    choice.change(lambda key: gr.update(visible=key == HUB), choice, hub, **QUIET)
    return {name: choice, f"{name}.hub": hub}
