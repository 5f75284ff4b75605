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


def plain(tag: str = "p", **more: Any) -> gr.HTML:
    """Text that stays text, whatever it holds. Not by gradio's template, which would run a "${...}"
    of the text as a program.
    """
    show = "() => { element.firstElementChild.textContent = props.value ?? ''; }"
    return gr.HTML(
        html_template=f'<{tag} class="plain"></{tag}>',
        js_on_load=f"const show = {show}; show(); watch('value', show);",
        **more,
    )


def refusal(error: Exception) -> gr.Error:
    """An error for the visitor, whose text is never markup."""
    return gr.Error(escape(str(error)), duration=20, print_exception=False)


def in_browser(name: str, *first: Any) -> str:
    """A function of assets/page.js for an event's `js`, with its first argument if there is one."""
    argument = f"{json.dumps(first)}, " if first else ""
    return f"(...values) => derby.{name}({argument}...values)"


def board(value: Any = None, **more: Any) -> gr.HTML:
    """A component whose value is a drawing (backend/results/drawing.py) and what `Run.draw` adds.
    It triggers `submit` when the race is to be run again, `select` when its next step is to be
    raced, `download` with the `name` of a file, and `input` with the `record` of a file that was
    opened, packed. No subclass: gradio writes a stub file beside each one's module.
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
