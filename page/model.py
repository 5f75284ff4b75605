"""The tab "Model": the target of every column that names none of its own."""

from typing import Any

import gradio as gr

from page.components import FROM_HUB, QUIET, WORDS, Fields, Surroundings, model_choice


def fill(tab: gr.Tab, around: Surroundings) -> Fields:
    offer = around.offer
    first = offer.runtimes[0]
    with gr.Row():
        models = [*((label, key) for key, label in offer.labels.items()), FROM_HUB]
        fields = model_choice("model", models, "0", **WORDS["model"])
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

    engine.change(show, engine, [precision, device], **QUIET)
    measure = gr.Checkbox(elem_id="measure", **WORDS["measure"])
    chosen = {"engine": engine, "precision": precision, "device": device, "measure": measure}
    return fields | chosen
