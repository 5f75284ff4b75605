"""The section "Own grammar": a grammar, whether it works, and a text to try on it."""

import asyncio
from typing import Any

import gradio as gr

from backend.grammar.sources import shipped
from backend.web.editor import look
from backend.web.form import KINDS
from backend.web.lineup import unused_grammar
from page.components import NEWEST, QUIET, WORDS, Fields, Surroundings, answer

#: Seconds without a change after which a grammar is looked at.
PAUSE = 0.3


def fill(sections: gr.HTML, around: Surroundings) -> Fields:
    ready = shipped()
    with gr.Row():
        choices = [("Choose a grammar", ""), *((name, name) for name in ready)]
        begin = gr.Dropdown(choices, value="", elem_id="begin", **WORDS["grammar begin"])
        kind = gr.Radio(KINDS, value="lark", elem_id="kind", **WORDS["grammar kind"])
    text = gr.Textbox(
        'start: "yes" | "no"', lines=8, max_lines=16, elem_id="own", **WORDS["grammar text"]
    )
    sound = answer("sound", "grammar sound")
    sample = gr.Textbox(lines=2, max_lines=8, elem_id="sample", **WORDS["grammar sample"])
    fits = answer("fits", "grammar fits")

    def start_from(name: Any) -> tuple[Any, Any]:
        source = ready.get(name) if isinstance(name, str) else None
        return (source.text, source.kind) if source else (gr.skip(), gr.skip())

    async def look_at(lineup: Any, *values: Any) -> tuple[str, str]:
        await asyncio.sleep(PAUSE)
        verdict, fit = await look(*values)
        return f"{verdict} {unused_grammar(lineup, around.offer)}".strip(), fit

    begin.input(start_from, begin, [text, kind], **QUIET)
    changes = [sections.focus, text.change, kind.change, sample.change]
    gr.on(changes, look_at, [around.fields["lineup"], kind, text, sample], [sound, fits], **NEWEST)
    return {"grammar.kind": kind, "grammar.text": text}
