"""The settings: stock components in a sidebar, one for each field of the form."""

import asyncio
from typing import Any

import gradio as gr

from backend.errors import DerbyError
from backend.form import KINDS, PRESETS, Form, own_grammar, settings_table, usual_lineup
from backend.grammar.check import Fit, check
from backend.grammar.sources import GrammarSource
from backend.offer import Offer
from backend.racing.line import Line
from backend.strategies.libraries import LLAMACPP
from backend.strategies.settings import OWN
from page.components import CHECKED, QUIET, Fields, plain, refusal
from page.guests import guest_of

#: Seconds of processor time that a check of a grammar may take.
DEADLINE = 2.0

THINKING = [("as usual", ""), ("on", "on"), ("off", "off")]

USUAL = ("usual", "")


def settings(offer: Offer, checks: Line, prompt: gr.Textbox) -> tuple[gr.Sidebar, Fields]:
    """Lay out the settings. Returns the form's components, `prompt` among them, too."""
    fields: dict[str, Any] = {"prompt": prompt}

    def add(component: Any, name: str, **more: Any) -> None:
        """Add the form's field, with its default, its title and what it is."""
        field = Form.model_fields[name]
        fields[name] = component(
            value=field.default, label=field.title, info=field.description or None, **more
        )

    def add_number(name: str) -> None:
        add(gr.Number, name, precision=0, minimum=0, min_width=120)

    with gr.Sidebar(open=False, width=420, elem_id="settings") as sidebar:
        gr.Markdown("## Settings")
        titles = [preset.title for preset in PRESETS]
        preset = gr.Dropdown(titles, value=titles[0], label="Line-ups to begin with")
        about = gr.Markdown(PRESETS[0].about)
        add(gr.Textbox, "lineup", lines=5, max_lines=12)
        with gr.Accordion("What the settings of a column do", open=False):
            gr.Markdown(
                "\n".join(
                    f"- `{setting}` {text}" if setting else f"\n**{strategy}**: {text}\n"
                    for strategy, setting, text in settings_table()
                )
            )
        with gr.Accordion("Model", open=False):
            models = [(f"usual ({offer.models[0]})", ""), *offer.models]
            engines = [(engine.title, engine.name) for engine in offer.engines]
            add(gr.Dropdown, "model", choices=models, allow_custom_value=offer.unlisted)
            add(gr.Dropdown, "engine", choices=[USUAL, *engines])
            for name in ("precision", "device"):
                add(gr.Dropdown, name, choices=[USUAL, *offer.options(name)])
        with gr.Accordion("Sampling", open=False):
            add_number("max_new_tokens")
            add(gr.Slider, "temperature", minimum=0, maximum=2, step=0.01)
            add(gr.Slider, "top_p", minimum=0.01, maximum=1, step=0.01)
            add(gr.Slider, "min_p", minimum=0, maximum=1, step=0.01)
            add(gr.Slider, "repetition_penalty", minimum=0.1, maximum=2, step=0.01)
            with gr.Row():
                for name in ("top_k", "seed", "context", "top"):
                    add_number(name)
            add(gr.Textbox, "stop", lines=1, max_lines=4)
            add(gr.Checkbox, "ignore_eos")
            add(gr.Checkbox, "chat")
            add(gr.Radio, "thinking", choices=THINKING)
        with gr.Accordion("Own grammar", open=False):
            add(gr.Radio, "grammar_kind", choices=list(KINDS))
            fields["grammar_text"] = gr.Code(
                Form.model_fields["grammar_text"].default,
                language=None,
                lines=6,
                max_lines=16,
                wrap_lines=True,
                label="Grammar",
            )
            _connect_grammar(fields, checks, offer)

    def choose(title: str) -> tuple[str, str]:
        preset = PRESETS[titles.index(title)]
        return preset.lineup, preset.about

    def places(engine: str) -> list[gr.Dropdown]:
        names = ("precision", "device")
        return [gr.Dropdown([USUAL, *offer.options(name, engine)], value="") for name in names]

    def fit(model: str, lineup: str) -> str:
        """The line-up, or the model's usual one if only GGUF files fit one of the two."""
        usual, gguf = usual_lineup(model, offer), LLAMACPP.name
        return lineup if (gguf in lineup) == (gguf in usual) else usual

    preset.input(choose, preset, [fields["lineup"], about], **QUIET)
    model, lineup = fields["model"], fields["lineup"]
    model.input(fit, [model, lineup], lineup, **QUIET)
    outputs = [fields["precision"], fields["device"]]
    fields["engine"].input(places, fields["engine"], outputs, **QUIET)
    return sidebar, fields


async def checked(checks: Line, guest: str, source: GrammarSource, sample: str) -> Fit:
    """How far a text fits a grammar, tried in turn: each check may take much memory. Raises
    DerbyError.
    """
    with checks.place(guest) as place:
        async for _ in place.ahead():
            pass
        return await asyncio.to_thread(check, source, sample, DEADLINE)


def _connect_grammar(fields: Fields, checks: Line, offer: Offer) -> None:
    """Have the visitor's own grammar checked, and a column added that uses it."""
    kind, text, lineup = fields["grammar_kind"], fields["grammar_text"], fields["lineup"]
    sample = gr.Textbox(label="A text to try", lines=1, max_lines=6)
    with gr.Row():
        button = gr.Button("Check", size="sm")
        use = gr.Button("Use it in a column", size="sm", variant="primary")
    answer = plain()

    async def fit(request: gr.Request, kind: Any, text: str, sample: str) -> str:
        try:
            source = own_grammar(kind, text, offer)
            return (await checked(checks, guest_of(request), source, sample)).sentence(sample)
        except DerbyError as error:
            raise refusal(error) from error

    async def add(request: gr.Request, lineup: str, kind: Any, text: str) -> tuple[str, str]:
        works = await fit(request, kind, text, "")
        if f"grammar={OWN}" in lineup:
            return lineup, f"{works} A column uses it."
        column = f"grammar:grammar={OWN}"
        return f"{lineup.rstrip()}\n{column}", f"{works} The line-up has a column that uses it."

    button.click(fit, [kind, text, sample], answer, **CHECKED)
    use.click(add, [lineup, kind, text], [lineup, answer], **CHECKED)
