"""The page: layout, event wiring, launch. The only file that imports gradio."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import typer
from gradio import themes

from backend.errors import DerbyError
from backend.export.production import LIBRARIES
from backend.grammar.sources import GrammarSource, shipped
from backend.models.files import BUILT_IN
from backend.racing.hosts.host import Host
from backend.strategies.registry import (
    CALL,
    DEFAULT_COLUMNS,
    NO_GRAMMAR,
    SESSION,
    STRATEGIES,
    Strategy,
)
from backend.strategies.settings import HYBRID, TRAINED
from backend.types import ModelSpec, Request
from backend.web import form
from backend.web.controller import Controller
from backend.web.editor import Editor, page_tokenizer
from backend.web.offer import FAKE_MODELS, HUB, Offer, menu
from backend.web.view import View, idle
from backend.web.visitors import Visitors

#: The components of the form by their names in backend/form.py.
Fields = dict[str, Any]

#: Our own elements bring their own style.
BARE: dict[str, Any] = {"apply_default_css": False, "padding": False}

#: Small changes of the page are answered at once and part of no API.
QUIET: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}

#: What comes in is validated in one place, by backend/, which trusts nothing.
UNREAD: dict[str, Any] = {
    "preprocess": False,
    "concurrency_limit": None,
    "trigger_mode": "multiple",
    "show_progress": "hidden",
    "api_visibility": "private",
}

#: While one answer is awaited, only the last of the changes counts.
NEWEST: dict[str, Any] = UNREAD | {"trigger_mode": "always_last"}

#: Seconds without a change after which a grammar is looked at.
PAUSE = 0.3

FROM_HUB = ("from the Hugging Face Hub", HUB)


def _asset(name: str) -> str:
    return (Path(__file__).resolve().parent / "assets" / name).read_text(encoding="utf-8")


WORDS: dict[str, dict[str, Any]] = json.loads(_asset("words.json"))


def build(host: Host, engines: Sequence[str], models: Sequence[str] = (BUILT_IN,)) -> gr.Blocks:
    """The page over `host`. `engines` and `models` are what visitors may choose from."""
    offered, visitors = menu(engines, models), Visitors(host)
    desk = Controller(visitors, offered)
    with gr.Blocks(title="Decode Derby", analytics_enabled=False, fill_width=True) as demo:
        gr.HTML(html_template=_asset("header.html"), js_on_load=_asset("page.js"), **BARE)
        with gr.Row():
            with gr.Column(scale=5, min_width=320):
                fields = _prompt()
                with gr.Row():
                    run = gr.Button("Run", variant="primary", elem_id="run", min_width=100)
                    stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=100)
                    more = gr.Button("Continue", elem_id="continue", min_width=100)
                gr.HTML(html_template=_asset("keys.html"), **BARE)
            with gr.Column(scale=6, min_width=320), gr.Tabs():
                with gr.Tab("Columns"):
                    fields |= _columns(offered)
                with gr.Tab("Own grammar") as tab:
                    fields |= _editor(Editor(lambda: page_tokenizer(engines)), tab)
                with gr.Tab("Sampling"):
                    fields |= _sampling()
                with gr.Tab("Model"):
                    fields |= _model(offered)
                with gr.Tab("Save"):
                    shelf = _snapshots()
                with gr.Tab("Production") as tab:
                    _production(desk, tab)
        board = gr.HTML(
            _preview(list(DEFAULT_COLUMNS)),
            html_template=_asset("board.html"),
            js_on_load=_asset("curve.js") + _asset("board.js"),
            elem_id="board",
            **BARE,
        )
        fields["columns"].change(_preview, fields["columns"], board, **QUIET)
        _wire(demo, visitors, desk, fields, (run, stop, more, board), shelf)
    return demo


def _wire(
    demo: gr.Blocks,
    visitors: Visitors,
    desk: Controller,
    fields: Fields,
    parts: tuple[gr.Button, gr.Button, gr.Button, gr.HTML],
    shelf: Fields,
) -> None:
    run, stop, more, board = parts

    async def race(request: gr.Request, *values: Any) -> AsyncIterator[View]:
        asked = dict(zip(fields, values, strict=True))
        async for shown in desk.race(request.session_hash or "", asked):
            yield shown

    async def go_on(request: gr.Request, tokens: Any) -> AsyncIterator[View]:
        async for shown in desk.go_on(request.session_hash or "", tokens):
            yield shown

    async def restore(request: gr.Request, snapshot: Any, tokens: Any) -> AsyncIterator[View]:
        async for shown in desk.restore(request.session_hash or "", snapshot, tokens):
            yield shown

    async def save(request: gr.Request, title: Any) -> tuple[Any, str]:
        snapshot, told = await desk.save(request.session_hash or "", title)
        return snapshot or gr.skip(), told

    def halt(request: gr.Request) -> None:
        visitors.stop(request.session_hash or "")

    def leave(request: gr.Request) -> None:
        visitors.leave(request.session_hash or "")

    length = fields["max_new_tokens"]
    run.click(race, list(fields.values()), board, **UNREAD)
    more.click(go_on, length, board, **UNREAD)
    shelf["load"].click(restore, [shelf["snapshot"], length], board, **UNREAD)
    shelf["save"].click(save, shelf["column"], [shelf["snapshot"], shelf["told"]], **UNREAD)
    stop.click(halt, trigger_mode="multiple", **QUIET)
    demo.unload(leave)


def _snapshots() -> Fields:
    """Saving a column's state to disk, and going on from one that was saved."""
    titles = [row.title for row in STRATEGIES.values() if row.cache]
    with gr.Row():
        column = gr.Dropdown(titles, value=STRATEGIES["kv"].title, **WORDS["save column"])
        snapshot = gr.Textbox(max_lines=1, elem_id="snapshot", **WORDS["snapshot"])
    with gr.Row():
        save = gr.Button("Save", elem_id="save", min_width=100)
        load = gr.Button("Load and go on", elem_id="load", min_width=100)
    told = gr.Textbox(interactive=False, show_label=False, container=False, elem_id="told")
    return {"column": column, "snapshot": snapshot, "save": save, "load": load, "told": told}


def _production(desk: Controller, tab: gr.Tab) -> None:
    """A column of the last race as code for other libraries."""
    titles = [row.title for row in STRATEGIES.values()]
    with gr.Row():
        row = gr.Dropdown(titles, value=titles[1], elem_id="code-column", **WORDS["code column"])
        library = gr.Dropdown(LIBRARIES, value=LIBRARIES[0], **WORDS["code library"])
    show = gr.Button("Show the code", elem_id="show", min_width=100)
    note = gr.Textbox(lines=2, interactive=False, elem_id="code-note", **WORDS["code note"])
    code = gr.Code(
        language="python",
        interactive=False,
        label="Code",
        lines=6,
        max_lines=22,
        buttons=["copy"],
        elem_id="code",
    )

    def write(request: gr.Request, title: Any, library: Any) -> tuple[Any, str]:
        found = desk.production(request.session_hash or "", title, library)
        language = "shell" if found.language == "bash" else "python"
        return gr.update(value=found.code, language=language), found.note

    asked = [tab.select, show.click, row.input, library.input]
    gr.on(asked, write, [row, library], [code, note], **NEWEST)


def _preview(names: list[str]) -> View:
    """The chosen columns, for a page on which nothing has run yet."""
    return idle([STRATEGIES[name] for name in names])


def _prompt() -> Fields:
    examples = json.loads(_asset("examples.json"))
    prompt = gr.Textbox(
        examples[0]["prompt"], lines=6, max_lines=12, elem_id="prompt", **WORDS["prompt"]
    )
    with gr.Row(elem_id="examples"):
        for example in examples:
            pick = gr.Button(example["label"], size="sm")
            pick.click(None, None, prompt, js=f"() => {json.dumps(example['prompt'])}")
    return {"prompt": prompt}


def _columns(offered: Offer) -> Fields:
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
                    fields |= _settings(row, offered)

    def show(names: list[str]) -> list[Any]:
        return [gr.update(visible=name in names) for name in tabs]

    columns.change(show, columns, list(tabs.values()), **QUIET)
    return fields


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
                names = [("none", NO_GRAMMAR), *shipped(), ("my own", form.OWN)]
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
                fields |= _choice(name, [*copies, *others, FROM_HUB], value, **words)
    return fields


def _editor(editor: Editor, tab: gr.Tab) -> Fields:
    """A grammar of one's own, told sound or not while it is written, and a text to try on it."""
    ready = shipped()
    with gr.Row():
        begin = gr.Dropdown(list(ready), value=None, elem_id="begin", **WORDS["grammar begin"])
        kind = gr.Radio(form.KINDS, value="lark", elem_id="kind", **WORDS["grammar kind"])
    text = gr.Textbox(
        'start: "yes" | "no"', lines=8, max_lines=16, elem_id="own", **WORDS["grammar text"]
    )
    sound = gr.Textbox(lines=2, interactive=False, elem_id="sound", **WORDS["grammar sound"])
    sample = gr.Textbox(lines=2, max_lines=8, elem_id="sample", **WORDS["grammar sample"])
    fits = gr.Textbox(lines=2, interactive=False, elem_id="fits", **WORDS["grammar fits"])

    def start_from(name: Any) -> tuple[Any, Any]:
        source = ready.get(name) if isinstance(name, str) else None
        return (source.text, source.kind) if source else (gr.skip(), gr.skip())

    async def look(*values: Any) -> tuple[str, str]:
        await asyncio.sleep(PAUSE)
        return await asyncio.to_thread(editor.look, *values)

    begin.input(start_from, begin, [text, kind], **QUIET)
    gr.on(
        [tab.select, text.change, kind.change, sample.change],
        look,
        [kind, text, sample],
        [sound, fits],
        **NEWEST,
    )
    return {"grammar.kind": kind, "grammar.text": text}


def _choice(
    name: str, choices: list[tuple[str, str]], value: str, *, label: str, info: str
) -> Fields:
    """A list of models whose last entry opens a box for a Hub id."""
    choice = gr.Dropdown(choices, value=value, label=label, info=info, min_width=140)
    hub = gr.Textbox(label=f"{label}: Hub id", placeholder="owner/model", visible=False)
    choice.change(lambda key: gr.update(visible=key == HUB), choice, hub, **QUIET)
    return {name: choice, f"{name}.hub": hub}


def _sampling() -> Fields:
    usual = Request("any")
    seen = usual.sampling
    with gr.Row():
        fields: Fields = {
            "temperature": gr.Slider(0, 2, seen.temperature, step=0.05, **WORDS["temperature"]),
            "top_p": gr.Slider(0.01, 1, seen.top_p, step=0.01, **WORDS["top_p"]),
            "top_k": _whole("top_k", seen.top_k),
            "seed": _whole("seed", seen.seed),
        }
    with gr.Row():
        fields |= {
            "max_new_tokens": _whole("max_new_tokens", usual.max_new_tokens),
            "stop": gr.Textbox(lines=2, max_lines=4, **WORDS["stop"]),
            "chat": gr.Checkbox(usual.chat, **WORDS["chat"]),
        }
    with gr.Row():
        return fields | {
            "context": _whole("context", usual.context),
            "shift": gr.Checkbox(usual.shift, elem_id="shift", **WORDS["shift"]),
            "heal": gr.Checkbox(usual.heal, **WORDS["heal"]),
        }


def _whole(name: str, value: int) -> gr.Number:
    return gr.Number(value, precision=0, min_width=110, elem_id=name, **WORDS[name])


def _model(offered: Offer) -> Fields:
    first = offered.runtimes[0]
    with gr.Row():
        models = [*((label, key) for key, label in offered.labels.items()), FROM_HUB]
        fields = _choice("model", models, "0", **WORDS["model"])
    with gr.Row():
        names = [(r.title, r.engine) for r in offered.runtimes]
        engine = gr.Dropdown(names, value=first.engine, **WORDS["engine"])
        precision = gr.Dropdown(first.precisions, value=first.precisions[0], **WORDS["precision"])
        device = gr.Dropdown(first.devices, value=first.devices[0], **WORDS["device"])

    def show(name: str) -> list[Any]:
        runtime = offered.runtime(name) or first
        return [
            gr.update(choices=list(n), value=n[0]) for n in (runtime.precisions, runtime.devices)
        ]

    engine.change(show, engine, [precision, device], **QUIET)
    measure = gr.Checkbox(elem_id="measure", **WORDS["measure"])
    chosen = {"engine": engine, "precision": precision, "device": device, "measure": measure}
    return fields | chosen


def launch_settings() -> dict[str, Any]:
    """Keyword arguments for `launch` that belong to the page, whoever serves it."""
    # Fonts of the reader's own system: the page asks no other server for anything.
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return {
        "theme": themes.Base(primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=mono),
        "css": _asset("page.css"),
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "strict_cors": True,
        "max_file_size": "1kb",  # nothing is ever uploaded
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "quiet": True,
    }


def main(
    host: str = "127.0.0.1",
    port: int = 7860,
    *,
    share: bool = False,
    fake: bool = False,
    model: list[str] = typer.Option([], help="Offer a folder or Hub id too; repeatable."),  # noqa: B008
) -> None:
    """Serve the page. --fake offers an engine without a model, --share opens a public link."""
    from backend.racing.hosts.process import ProcessHost

    engines, models, warm = ("fake",), (*FAKE_MODELS, *model), ()
    if not fake:
        from backend.engines.openvino.export import prepare_all

        try:
            prepare_all(print)
        except DerbyError as error:
            raise SystemExit(str(error)) from error
        engines, models = ("openvino", "torch"), (BUILT_IN, *model)
        warm = (ModelSpec(),)
    races = ProcessHost(warm)
    try:
        _, address, shared = build(races, engines, models).launch(
            server_name="0.0.0.0" if "SPACE_ID" in os.environ else host,  # noqa: S104 (as Spaces ask)
            server_port=port,
            share=share,
            prevent_thread_lock=True,
            **launch_settings(),
        )
        print(f"Decode Derby is at {shared or address}", flush=True)  # noqa: T201
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass
    finally:
        races.close()


if __name__ == "__main__":
    typer.run(main)
