"""Why a race went as it did: sentences, a table of figures, and one plot. The browser fills them
from the drawing on the board (assets/page.js).
"""

from typing import Any

import gradio as gr

from page.components import plain


def fill() -> list[Any]:
    """Lay them out. Returns what `derby.why` fills."""
    with gr.Accordion("Why?", open=False):
        reasons = plain("{{#each value}}<p>{{this}}</p>{{/each}}", [], elem_id="reasons")
        figures = gr.Dataframe(
            interactive=False, wrap=True, max_height=900, show_label=False, elem_id="figures"
        )
        curve = gr.LinePlot(
            x="rows",
            y="times",
            color="of",
            x_title="tokens that a pass checks",
            y_title="times as long as a pass over one",
            color_title="",
            height=280,
            show_label=False,
            elem_id="curve",
        )
    return [reasons, figures, curve]
