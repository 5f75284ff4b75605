"""What several parts of the page share, and the board, the one component of our own."""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

_ASSETS = Path(__file__).resolve().parents[1] / "assets"

#: The form's components by the names of its fields.
Fields = Mapping[str, Any]

#: Of what a visitor does on the page: answered at once, and no function for programs.
QUIET: dict[str, Any] = {
    "queue": False,
    "show_progress": "hidden",
    "api_visibility": "private",
}

#: The same for what may be refused: gradio shows the errors of queued events alone.
CHECKED = QUIET | {"queue": True, "concurrency_limit": None}


def plain(template: str = "{{value}}", value: Any = "", **more: Any) -> gr.HTML:
    """Text that stays text, whatever it holds: its template escapes values."""
    return gr.HTML(value, html_template=template, js_on_load=None, **more)


def refusal(error: Exception) -> gr.Error:
    """An error for the visitor, whose text is never markup."""
    return gr.Error(escape(str(error)), duration=20, print_exception=False)


def in_browser(name: str, *first: Any) -> str:
    """A function of assets/page.js for an event's `js`, with its first argument if there is one."""
    argument = f"{json.dumps(first)}, " if first else ""
    return f"(...values) => derby.{name}({argument}...values)"


def board(value: Any = None, **more: Any) -> gr.HTML:
    """A component whose value is a drawing (backend/results/drawing.py). It triggers `submit` when
    a noisy race is to be run again, and `input` when a file of a race was dropped on it: gr.on
    takes no events of other names. No subclass: gradio writes a stub file beside each one's module.
    """
    html, css, js = (
        (_ASSETS / f"race.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    return gr.HTML(
        value,
        html_template=html,
        css_template=css,
        js_on_load=js,
        apply_default_css=False,
        padding=False,
        **more,
    )
