"""The visitor's own grammar: does it work, and a column that uses it."""

import asyncio
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.form import KINDS, own_grammar, read_form
from backend.grammar.check import check
from backend.offer import Offer
from backend.strategies.settings import OWN
from page.components import CHECKED, plain, refusal

#: Seconds of processor time that a check may take.
DEADLINE = 2.0

COLUMN = f"grammar:grammar={OWN}"


def fill(lineup: gr.Textbox, offer: Offer) -> dict[str, Any]:
    """Lay the editor out. Returns the form's components."""
    usual = read_form({})
    kind = gr.Radio(list(KINDS), value=usual.grammar_kind, label="Kind")
    text = gr.Code(
        usual.grammar_text, language=None, lines=6, max_lines=16, wrap_lines=True, label="Grammar"
    )
    sample = gr.Textbox(label="A text to try", lines=1, max_lines=6)
    with gr.Row():
        button = gr.Button("Check", size="sm")
        use = gr.Button("Use it in a column", size="sm", variant="primary")
    answer = plain()

    async def look(kind: str, text: str, sample: str) -> str:
        try:
            source = own_grammar(kind, text, offer)  # pyright: ignore[reportArgumentType]
            fit = await asyncio.to_thread(check, source, sample, DEADLINE)
        except DerbyError as error:
            raise refusal(error) from error
        return fit.sentence(sample)

    async def add(lineup: str, kind: str, text: str) -> tuple[str, str]:
        works = await look(kind, text, "")
        if f"grammar={OWN}" in lineup:
            return lineup, f"{works} A column uses it."
        return (
            f"{lineup.rstrip()}\n{COLUMN}",
            f"{works} The line-up has a column more that uses it.",
        )

    button.click(look, [kind, text, sample], answer, **CHECKED)
    use.click(add, [lineup, kind, text], [lineup, answer], **CHECKED)
    return {"grammar_kind": kind, "grammar_text": text}
