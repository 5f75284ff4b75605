"""The section "Model": the target of every column that names none itself."""

from typing import Any

import gradio as gr

from backend.models.files import model_title
from backend.web.offer import HUB, Offer
from page.components import QUIET, WORDS, Fields, Surroundings

FROM_HUB = ("from the Hugging Face Hub", HUB)


def fill(_: gr.HTML, around: Surroundings) -> Fields:
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
        device = gr.Dropdown(first.devices, value=first.devices[0], **WORDS["device"])
        chosen, words = _precision(offer, "0", first.engine)
        precision = gr.Dropdown(first.precisions, value=chosen, **words)

    def place(key: str, name: str) -> list[Any]:
        """Precision and device as an engine has them, for a model."""
        runtime = offer.runtime(name) or first
        usual, words = _precision(offer, key, runtime.engine)
        return [
            gr.update(choices=list(runtime.precisions), value=usual, **words),
            gr.update(choices=list(runtime.devices), value=runtime.devices[0]),
        ]

    def show(key: str, name: str) -> list[Any]:
        return [gr.update(visible=key == HUB), place(key, name)[0]]

    model.input(show, [model, engine], [hub, precision], **QUIET)
    engine.input(place, [model, engine], [precision, device], **QUIET)
    measure = gr.Checkbox(elem_id="measure", **WORDS["measure"])
    return {
        "model": model,
        "model.hub": hub,
        "engine": engine,
        "precision": precision,
        "device": device,
        "measure": measure,
    }


def _precision(offer: Offer, key: str, engine: str) -> tuple[str, dict[str, Any]]:
    """The precision at which a model runs by default, and the field's words, which say why."""
    chosen, why = offer.usual_precision(key, engine)
    words = WORDS["precision"]
    return chosen, words | {"info": f"{words['info']} {why}".strip()}
