"""The settings: stock components in a sidebar, one for each field of the form."""

from typing import Any

import gradio as gr

from backend.form import PRESETS, read_form, settings_table
from backend.offer import Offer
from page import grammar
from page.components import QUIET, Fields

#: How each field is labelled, with a line on what it does.
LABELS: dict[str, dict[str, Any]] = {
    "lineup": {"label": "Line-up", "info": "A column a line, such as speculative:k=4"},
    "max_new_tokens": {"label": "Max new tokens"},
    "temperature": {"label": "Temperature", "info": "0: always the likeliest token"},
    "top_k": {"label": "Top-k", "info": "0: off"},
    "top_p": {"label": "Top-p"},
    "min_p": {"label": "Min-p"},
    "repetition_penalty": {"label": "Repetition penalty"},
    "seed": {"label": "Seed"},
    "stop": {"label": "Stop strings", "info": "One a line; \\n is a line break"},
    "ignore_eos": {"label": "Fixed length", "info": "Write on after the end of the text"},
    "chat": {"label": "Chat template"},
    "context": {"label": "Context limit", "info": "Tokens; 0: the model's own"},
    "thinking": {"label": "Thinking", "info": "Of models that can switch it"},
    "top": {"label": "Likely tokens", "info": "How many to note at each place"},
    "model": {"label": "Model"},
    "engine": {"label": "Engine"},
    "precision": {"label": "Precision"},
    "device": {"label": "Device"},
}


def settings(offer: Offer, prompt: gr.Textbox) -> tuple[gr.Sidebar, Fields]:
    """Lay out the settings. Returns the form's components, `prompt` among them, too."""
    usual = read_form({})

    def whole(name: str) -> gr.Number:
        return gr.Number(
            getattr(usual, name), precision=0, minimum=0, min_width=120, **LABELS[name]
        )

    def share(name: str, least: float, most: float) -> gr.Slider:
        return gr.Slider(least, most, getattr(usual, name), step=0.01, **LABELS[name])

    fields: dict[str, Any] = {"prompt": prompt}
    with gr.Sidebar(open=False, width=420, elem_id="settings") as sidebar:
        gr.Markdown("## Settings")
        titles = [preset.title for preset in PRESETS]
        preset = gr.Dropdown(titles, value=titles[0], label="Line-ups to begin with")
        about = gr.Markdown(PRESETS[0].about)
        fields["lineup"] = gr.Textbox(usual.lineup, lines=5, max_lines=12, **LABELS["lineup"])
        with gr.Accordion("What the settings of a column do", open=False):
            gr.Markdown("\n".join(map(_described, settings_table())))
        with gr.Accordion("Model", open=False):
            fields |= _model(offer)
        with gr.Accordion("Sampling", open=False):
            fields["max_new_tokens"] = whole("max_new_tokens")
            fields["temperature"] = share("temperature", 0, 2)
            fields["top_p"] = share("top_p", 0.01, 1)
            fields["min_p"] = share("min_p", 0, 1)
            fields["repetition_penalty"] = share("repetition_penalty", 0.1, 2)
            with gr.Row():
                fields |= {name: whole(name) for name in ("top_k", "seed", "context", "top")}
            fields["stop"] = gr.Textbox(lines=1, max_lines=4, **LABELS["stop"])
            fields["ignore_eos"] = gr.Checkbox(usual.ignore_eos, **LABELS["ignore_eos"])
            fields["chat"] = gr.Checkbox(usual.chat, **LABELS["chat"])
            choices = [("as usual", ""), ("on", "on"), ("off", "off")]
            fields["thinking"] = gr.Radio(choices, value="", **LABELS["thinking"])
        with gr.Accordion("Own grammar", open=False):
            fields |= grammar.fill(fields["lineup"], offer)

    def choose(title: str) -> tuple[str, str]:
        chosen = PRESETS[titles.index(title)]
        return chosen.lineup, chosen.about

    preset.input(choose, preset, [fields["lineup"], about], **QUIET)
    return sidebar, fields


def _described(entry: tuple[str, str, str]) -> str:
    """A line of Markdown on a strategy, or on a setting of it."""
    strategy, setting, text = entry
    return f"- `{setting}` {text}" if setting else f"\n**{strategy}**: {text}\n"


def _model(offer: Offer) -> dict[str, Any]:
    """The target of every column that names none itself."""
    engines = [(runtime.title, runtime.engine) for runtime in offer.runtimes]

    def choices(what: str, engine: str = "") -> list[Any]:
        return [("usual", ""), *offer.options(what, engine)]

    models = [(f"usual ({offer.models[0]})", ""), *offer.models]
    fields: dict[str, Any] = {
        "model": gr.Dropdown(
            models, value="", allow_custom_value=offer.unlisted, **LABELS["model"]
        ),
        "engine": gr.Dropdown([("usual", ""), *engines], value="", **LABELS["engine"]),
        "precision": gr.Dropdown(choices("precision"), value="", **LABELS["precision"]),
        "device": gr.Dropdown(choices("device"), value="", **LABELS["device"]),
    }

    def places(engine: str) -> list[gr.Dropdown]:
        return [gr.Dropdown(choices(what, engine), value="") for what in ("precision", "device")]

    outputs = [fields["precision"], fields["device"]]
    fields["engine"].input(places, fields["engine"], outputs, **QUIET)
    return fields
