"""The tab "Model": the target of every column that names none of its own."""

from typing import Any

import gradio as gr

from backend.models.files import model_title
from backend.web.offer import HUB
from page.components import QUIET, WORDS, Fields, Surroundings

FROM_HUB = ("from the Hugging Face Hub", HUB)


def fill(tab: gr.Tab, around: Surroundings) -> Fields:
    offer = around.offer
    first = offer.runtimes[0]
    with gr.Row():
        models = [(model_title(label), key) for key, label in offer.labels.items()]
        models += [FROM_HUB] if offer.hub else []
        model = gr.Dropdown(models, value="0", min_width=140, **WORDS["model"])
        hub = gr.Textbox(label="Model: Hub id", placeholder="owner/model", visible=False)
    with gr.Row():
        names = [(runtime.title, runtime.engine) for runtime in offer.runtimes]
        engine = gr.Dropdown(names, value=first.engine, **WORDS["engine"])
        precision = gr.Dropdown(first.precisions, value=first.precisions[0], **WORDS["precision"])
        device = gr.Dropdown(first.devices, value=first.devices[0], **WORDS["device"])

    def show(name: str) -> list[Any]:
        runtime = offer.runtime(name) or first
        return [
            gr.update(choices=list(n), value=n[0]) for n in (runtime.precisions, runtime.devices)
        ]

    model.input(lambda key: gr.update(visible=key == HUB), model, hub, **QUIET)
    engine.input(show, engine, [precision, device], **QUIET)
    measure = gr.Checkbox(elem_id="measure", **WORDS["measure"])
    return {
        "model": model,
        "model.hub": hub,
        "engine": engine,
        "precision": precision,
        "device": device,
        "measure": measure,
    }
