"""What several parts of the page share."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr

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
    given = f"{json.dumps(first)}, " if first else ""
    return f"(...values) => derby.{name}({given}...values)"
