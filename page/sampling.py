"""The section "Sampling": how tokens are chosen, how many, what ends a text, what is recorded."""

import gradio as gr

from backend.types import Request
from backend.web.examples import examples
from page.components import WORDS, Fields, Surroundings, whole_number


def fill(_: gr.HTML, around: Surroundings) -> Fields:
    usual = Request("any")
    seen = usual.sampling
    with gr.Row():
        fields: Fields = {
            "temperature": gr.Slider(0, 2, seen.temperature, step=0.05, **WORDS["temperature"]),
            "top_p": gr.Slider(0.01, 1, seen.top_p, step=0.01, **WORDS["top_p"]),
            "min_p": gr.Slider(0, 1, seen.min_p, step=0.01, **WORDS["min_p"]),
            "top_k": whole_number("top_k", seen.top_k),
            "repetition_penalty": gr.Slider(
                0.1, 2, seen.repetition_penalty, step=0.05, **WORDS["repetition_penalty"]
            ),
            "seed": whole_number("seed", seen.seed),
        }
    with gr.Row():
        fields |= {
            "max_new_tokens": whole_number(
                "max_new_tokens", min(examples()[0].tokens, around.offer.limits.tokens)
            ),
            "stop": gr.Textbox(lines=2, max_lines=4, **WORDS["stop"]),
            "ignore_eos": gr.Checkbox(usual.ignore_eos, **WORDS["ignore_eos"]),
            "chat": gr.Checkbox(usual.chat, **WORDS["chat"]),
        }
    with gr.Row():
        fields |= {
            "context": whole_number("context", usual.context),
            "heal": gr.Checkbox(usual.heal, **WORDS["heal"]),
            "thinking": gr.Radio(
                [("as usual", ""), ("on", "on"), ("off", "off")],
                value=usual.thinking,
                **WORDS["thinking"],
            ),
        }
    return fields | {"top": whole_number("top", usual.top)}
