"""The tab "Columns": which columns race, and the settings of each."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from backend.grammar.sources import GrammarSource, shipped
from backend.strategies.registry import (
    CALL,
    DEFAULT_COLUMNS,
    NO_GRAMMAR,
    OWN,
    SESSION,
    STRATEGIES,
    Strategy,
)
from backend.strategies.settings import HYBRID, TRAINED
from backend.web.offer import Offer
from backend.web.view import View, idle
from page.components import FROM_HUB, QUIET, WORDS, Fields, Surroundings, model_choice


def fill(tab: gr.Tab, around: Surroundings) -> Fields:
    columns = gr.Dropdown(
        [(row.title, name) for name, row in STRATEGIES.items()],
        value=list(DEFAULT_COLUMNS),
        multiselect=True,
        elem_id="columns",
        **WORDS["columns"],
    )
    fields: Fields = {"columns": columns}
    tabs: dict[str, gr.Tab] = {}
    with gr.Tabs():
        for name, row in STRATEGIES.items():
            if row.settings():
                with gr.Tab(row.title, visible=name in DEFAULT_COLUMNS) as tabs[name], gr.Row():
                    fields |= _settings(row, around.offer)

    def show(names: list[str]) -> list[Any]:
        return [gr.update(visible=name in names) for name in tabs]

    columns.change(show, columns, list(tabs.values()), **QUIET)
    columns.change(preview, columns, around.board, **QUIET)
    return fields


def preview(names: Sequence[str] = DEFAULT_COLUMNS) -> View:
    """The chosen columns, for a page on which nothing has run yet."""
    return idle([STRATEGIES[name] for name in names])


def _settings(row: Strategy, offered: Offer) -> Fields:
    fields: Fields = {}
    declared = getattr(row.drafting, "__dataclass_fields__", {})
    for setting, value in row.settings().items():
        name = f"{row.name}.{setting}"
        about = declared[setting].metadata if setting in declared else {}
        words: dict[str, Any] = {"label": about.get("label"), "info": about.get("help")}
        match value:
            case _ if setting == "cache":
                fields[name] = gr.Dropdown(
                    [("this answer", CALL), ("my earlier answers too", SESSION)],
                    value=value,
                    allow_custom_value=True,
                    min_width=140,
                    **WORDS["cache"],
                )
            case bool():
                fields[name] = gr.Checkbox(value, min_width=140, **words)
            case int() if about:
                limits = (about["low"], about["high"])
                fields[name] = gr.Slider(*limits, value, step=1, min_width=140, **words)
            case int():
                fields[name] = gr.Number(value, precision=0, **WORDS[setting])
            case None | GrammarSource():
                names = [("none", NO_GRAMMAR), *shipped(), ("my own", OWN)]
                usual = value.name if value else NO_GRAMMAR
                fields[name] = gr.Dropdown(
                    names,
                    value=usual,
                    elem_id=name.replace(".", "-"),
                    min_width=140,
                    **WORDS["grammar"],
                )
            case _:
                own = [("lookup, else trained", HYBRID), ("trained", TRAINED)]
                copies = [*own, ("int4 copy", "int4"), ("int8 copy", "int8")]
                others = [(label, key) for key, label in offered.labels.items() if key != "0"]
                fields |= model_choice(name, [*copies, *others, FROM_HUB], value, **words)
    return fields
