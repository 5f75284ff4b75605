"""The launch: what the page may offer, where races run, and for how long."""

import sys
import time

import typer

from backend.engines.registry import offered_engines
from backend.engines.registry import plugin_problems as engine_problems
from backend.errors import DerbyError
from backend.models.files import BUILT_IN
from backend.racing.hosts.process import ProcessHost
from backend.racing.preparation import prepare_all
from backend.strategies.registry import plugin_problems as strategy_problems
from backend.types import ModelSpec


def main(
    host: str = "127.0.0.1",
    port: int = 7860,
    *,
    share: bool = False,
    fake: bool = False,
    model: list[str] = typer.Option([], help="Offer a folder or Hub id too; repeatable."),  # noqa: B008
) -> None:
    """Serve the page. --fake offers an engine without a model, --share opens a public link."""
    for problem in (*engine_problems(), *strategy_problems()):
        print(problem, file=sys.stderr, flush=True)  # noqa: T201
    engines, models, warm = offered_engines(demo=fake), tuple(model), ()
    if not fake:
        _prepare()
        models, warm = (BUILT_IN, *model), (ModelSpec(),)
    races = ProcessHost(warm)
    try:
        from page.launch import serve  # gradio, while the worker loads the model

        address = serve(races, engines, models, host=host, port=port, share=share)
        print(f"Decode Derby is at {address}", flush=True)  # noqa: T201
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        pass
    finally:
        races.close()


def _prepare() -> None:
    """Make the built-in model's files, or end with the sentence that says why not."""
    try:
        prepare_all(print)
    except DerbyError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    typer.run(main)
