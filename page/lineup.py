"""The section "Columns": the line-up of a race, as a list to be changed in place and as text."""

from typing import Any

import gradio as gr

from backend.web.examples import examples
from backend.web.lineup import Lineup
from backend.web.lineup_editor import answer, catalogue, editor_state
from backend.web.offer import Offer
from backend.web.view import View, idle
from page.components import QUIET, Fields, Surroundings, own


def fill(_: gr.HTML, around: Surroundings) -> Fields:
    offer = around.offer
    state = editor_state(examples()[0].lineup(offer), offer)
    editor = own("lineup", state, catalogue=catalogue(offer))

    # In a thread, as gradio calls what is not async: it may take milliseconds.
    def act(sent: Any) -> tuple[dict[str, Any], Any]:
        state = answer(sent, offer)
        return state, preview(state["text"], offer) if state["columns"] else gr.skip()

    editor.input(act, editor, [editor, around.board], **QUIET)
    return {"lineup": editor}


def preview(text: str, offer: Offer, about: str = "", goal: int = 0) -> View:
    """A view of the text's columns before anything has run, with a line that says what they are
    about, and the flag at `goal` tokens; 0: where it was.
    """
    return idle(Lineup.read(text, offer).columns, about, goal)
