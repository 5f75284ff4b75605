"""The launch: what the page may offer, where races run, and for how long."""

import logging
import os
import signal
import time
from importlib import import_module
from pathlib import Path

import typer

from backend.cli.console import complain, warn
from backend.engines.registry import offered_engines
from backend.engines.registry import plugin_problems as engine_problems
from backend.errors import DerbyError
from backend.libraries.server import VARIABLE as SERVERS
from backend.libraries.server import named_servers
from backend.limits import Limits, limits_of
from backend.machine import LOOPBACK, zero_gpu
from backend.models.files import BUILT_IN
from backend.racing.hosts.host import Host
from backend.racing.hosts.process import ProcessHost
from backend.racing.hosts.zero_gpu import ZeroGpuHost
from backend.racing.preparation import fetch_offered
from backend.strategies.registry import plugin_problems as strategy_problems
from backend.types import ModelSpec
from backend.web.address import free_port
from backend.web.offer import models_named
from page.site import proxies_of

#: What a Space knows of itself.
SPACE = "SPACE_ID"


def main(
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(7860, help="The port to listen on; 0: any free one."),
    *,
    share: bool = False,
    fake: bool = False,
    model: list[str] = typer.Option(  # noqa: B008
        [], help="Also offer this folder, GGUF file or Hub id. Repeatable."
    ),
    limit: list[str] = typer.Option([], help="Set a limit, as NAME=VALUE. Repeatable."),  # noqa: B008
    public_host: list[str] = typer.Option(  # noqa: B008
        [],
        envvar="DECODE_DERBY_PUBLIC_HOST",
        help="A host name under which visitors reach the page, such as a proxy's. Repeatable.",
    ),
    proxy: list[str] = typer.Option(  # noqa: B008
        [],
        envvar="DECODE_DERBY_PROXY",
        help="The address or network of a proxy that sends X-Forwarded-For, so that each visitor's "
        "address has its own limit. Repeatable.",
    ),
    mcp: bool = False,
    servers: Path | None = typer.Option(  # noqa: B008
        None, help="A TOML file of servers that columns may use; see docs/servers.md."
    ),
) -> None:
    """Serve the page. --fake adds an engine without a model, --share opens a public link, --mcp
    offers tools for agents at /mcp.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if servers is not None:
            os.environ[SERVERS] = str(servers.absolute())  # for the worker, too
            named_servers()
        limits = _limits(limit, host, public=share or bool(public_host))
        _serve(
            limits,
            model,
            host=host,
            port=port,
            share=share,
            fake=fake,
            public_hosts=public_host,
            proxies=proxies_of(proxy),
            mcp=mcp,
        )
    except DerbyError as error:
        complain(str(error))
        raise typer.Exit(2) from None


def _serve(
    limits: Limits,
    model: list[str],
    *,
    host: str,
    port: int,
    share: bool,
    fake: bool,
    public_hosts: list[str],
    proxies: list[str],
    mcp: bool,
) -> None:
    """Serve until interrupted. Raises DerbyError for what the operator can change."""
    if mcp:
        _require_agents()
    for problem in (*engine_problems(), *strategy_problems()):
        warn(problem)
    engines, warm = offered_engines(demo=fake), ()
    models = models_named(model, engines)
    port = free_port(host, port)
    if not fake:
        fetch_offered(models, print)
        models, warm = (BUILT_IN, *models), (ModelSpec(),)
    races: Host
    if zero_gpu():
        # In this thread, before anything imports torch or gradio.
        races = ZeroGpuHost(import_module("spaces").GPU, limits)
    else:
        races = ProcessHost(warm, limits)
    try:
        from page.launch import serve  # gradio, while the worker prepares and loads the model

        address = serve(
            races,
            engines,
            models,
            limits,
            host=host,
            port=port,
            share=share,
            public_hosts=public_hosts,
            proxies=proxies,
            mcp=mcp,
        )
        print(f"Decode Derby is at {address}", flush=True)  # noqa: T201
        while True:
            time.sleep(0.5)  # Ctrl-C may reach another thread: then only running code sees it
    except KeyboardInterrupt:
        pass
    finally:
        for asked in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked, signal.SIG_IGN)  # it is ending already
        races.close()
        # The server's thread goes on until the interpreter is gone, and may begin no thread any
        # more: what it breaks off then is no error.
        logging.disable()


def _require_agents() -> None:
    """Raise DerbyError, before any model is loaded, where what agents need is not installed."""
    try:
        import_module("mcp")
    except ImportError as error:
        raise DerbyError(
            "Tools for agents need the package mcp: install it with "
            "`.venv/bin/python -m pip install -r requirements-mcp.txt`, or leave --mcp out."
        ) from error


def _limits(texts: list[str], host: str, *, public: bool) -> Limits:
    """The limits of this page; the strict ones where others than its owner can reach it."""
    open_to_all = public or SPACE in os.environ or host not in LOOPBACK
    return limits_of(texts, public=open_to_all)


if __name__ == "__main__":
    typer.run(main)
