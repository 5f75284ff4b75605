"""The tab "Columns": the line-up of a race, as a list to be changed in place and as text."""

from typing import Any

import gradio as gr

from backend.web.assets import asset
from backend.web.examples import examples
from backend.web.lineup import Lineup
from backend.web.lineup_editor import answer, catalogue, editor_state
from backend.web.offer import Offer
from backend.web.view import View, idle
from page.components import BARE, QUIET, Fields, Surroundings
from page.modules import starting


def fill(tab: gr.Tab, around: Surroundings) -> Fields:
    offer = around.offer
    editor = gr.HTML(
        editor_state(examples()[0].lineup(offer), offer),
        html_template=asset("lineup.html"),
        js_on_load=starting("lineup.js"),
        elem_id="lineup",
        catalogue=catalogue(offer),
        **BARE,
    )

    # In a thread, as gradio calls what is not async: it may take milliseconds.
    def act(sent: Any) -> tuple[dict[str, Any], Any]:
        state = answer(sent, offer)
        return state, preview(state["text"], offer) if state["columns"] else gr.skip()

    editor.input(act, editor, [editor, around.board], **QUIET)
    return {"lineup": editor}


def preview(text: str, offer: Offer, about: str = "") -> View:
    """The columns of the text, for a page on which nothing has run yet, and what they are about."""
    return idle(Lineup.read(text, offer).columns, about)
