"""The settings: a list of sections in a drawer over the race. The chip beside Run says what the
next race runs on, and opens the drawer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from page import lineup, model, own_grammar, production, sampling
from page.components import Fields, Surroundings, own
from page.modules import calling

#: The sections in their order: the title of each, what fills it and returns its fields of the form,
#: and the event of the list's by which it hears that it is shown, "" if it need not know.
SECTIONS: tuple[tuple[str, Callable[[gr.HTML, Surroundings], Fields], str], ...] = (
    ("Columns", lineup.fill, ""),
    ("Model", model.fill, ""),
    ("Sampling", sampling.fill, ""),
    ("Own grammar", own_grammar.fill, "focus"),
    ("Production", production.fill, "expand"),
)

#: What the chip tells of the form.
_TOLD = ("model", "model.hub", "precision", "max_new_tokens", "temperature")


def fill(around: Surroundings, fields: Fields, ask: gr.HTML) -> None:
    """Lay the drawer out and add its fields to the form's. It is loaded when `ask`, which has the
    chip, says that it is opened for the first time.
    """
    with gr.Column(elem_id="settings") as drawer, gr.Column(elem_id="drawer"):
        titles = [[title, event] for title, _, event in SECTIONS]
        sections = own("sections", script="settings.js", sections=titles)
        for number, (_, section, _) in enumerate(SECTIONS):
            with gr.Column(elem_id=f"section-{number}", elem_classes="dd-section"):
                fields |= section(sections, around)
    later = [block for block in _within(drawer) if block.visible is True]
    for block in later:
        block.visible = False  # gradio loads a component's files unless the component itself is not
    shown = f'() => Array({len(later)}).fill({{ __type__: "update", visible: true }})'
    ask.expand(None, None, later, js=shown)
    for name in _TOLD:
        show_chip(fields[name].change, fields)


def _within(block: Any) -> Iterator[Any]:
    """A block and all blocks in it, those outside first."""
    yield block
    for child in getattr(block, "children", ()):
        yield from _within(child)


def show_chip(event: Callable[..., object], fields: Fields) -> None:
    """Have the chip show the form's values at an event."""
    told = [fields[name] for name in _TOLD]
    event(None, told, None, js=calling("ask.js", "showForm"))
