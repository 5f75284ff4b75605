"""The board: the one component of our own. It draws a race at a moment of its steps."""

from pathlib import Path
from typing import Any

import gradio as gr

_ASSETS = Path(__file__).resolve().parents[1] / "assets"


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
