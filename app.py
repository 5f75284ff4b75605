"""The launch: what the page may offer, where races run, and for how long."""

import logging
import os
import signal
import time
from pathlib import Path
from socket import SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket

import typer

from backend.cli.console import complain
from backend.engines.registry import offered_engines
from backend.errors import DerbyError
from backend.libraries.server import VARIABLE as SERVERS
from backend.libraries.server import named_servers
from backend.limits import Limits, limits_of
from backend.machine import LOOPBACK
from backend.models.files import BUILT_IN, HUB_ID, hub_folder
from backend.offer import offer_of, titled
from backend.racing.hosts import ProcessHost
from backend.types import ModelSpec


def main(
    host: str = typer.Option("127.0.0.1", help="The address to listen on."),
    port: int = typer.Option(7860, help="The port to listen on; 0: any free one."),
    *,
    share: bool = False,
    public: bool = typer.Option(
        default=False, help="Set the limits for strangers, as for a page behind a proxy."
    ),
    fake: bool = False,
    model: list[str] = typer.Option(  # noqa: B008
        [], help="Also offer this folder, GGUF file or Hub id. Repeatable."
    ),
    limit: list[str] = typer.Option([], help="Set a limit, as NAME=VALUE. Repeatable."),  # noqa: B008
    root_path: str = typer.Option("", help="The path below which a proxy serves the page."),
    servers: Path | None = typer.Option(  # noqa: B008
        None, help="A TOML file of servers that columns may use; see docs/operate.md."
    ),
) -> None:
    """Serve the page. --fake adds an engine without a model, --share opens a public link."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if servers is not None:
            os.environ[SERVERS] = str(servers.absolute())  # for the worker, too
            named_servers()
        limits = limits_of(limit, public=public or is_public(host, share=share))
        _serve(limits, model, host=host, port=port, root=root_path, share=share, fake=fake)
    except DerbyError as error:
        complain(str(error))
        raise typer.Exit(2) from None


def is_public(host: str, *, share: bool) -> bool:
    """Whether others than its owner can reach the page."""
    return share or "SPACE_ID" in os.environ or host not in LOOPBACK


def _serve(
    limits: Limits, model: list[str], *, host: str, port: int, root: str, share: bool, fake: bool
) -> None:
    """Serve until interrupted. Raises DerbyError for what the operator can change."""
    if os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true"):
        raise DerbyError(
            "A ZeroGPU Space lends its GPU call by call, and races run in a process that stays: "
            "choose a CPU, or a GPU of its own, as the Space's hardware."
        )
    engines, warm = offered_engines(demo=fake), ()
    titles = titled(model, engines)
    port = _free(host, port)
    if not fake:
        for name in filter(HUB_ID.fullmatch, titles.values()):
            hub_folder(name, print)
        warm = (ModelSpec(),)
    races = ProcessHost(warm, limits, titles)
    try:
        # gradio, while the worker prepares and loads the model
        from page.launch import serve
        from page.layout import build

        models = (*(() if fake else (BUILT_IN,)), *titles)
        demo = build(races, offer_of(engines, models, limits, named_servers()))
        address = serve(demo, host, port, limits.waiting, root, share=share)
        print(f"Decode Derby is at {address}", flush=True)  # noqa: T201
        while True:
            time.sleep(0.5)  # Ctrl-C may reach another thread: then only running code sees it
    except KeyboardInterrupt:
        pass
    finally:
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, signal.SIG_IGN)  # it is ending already
        races.close()
        # The server's thread goes on until the interpreter is gone, and may begin no thread any
        # more: what it breaks off then is no error.
        logging.disable()


def _free(host: str, port: int) -> int:
    """The port, if a server may listen there at `host`; for 0, a free one. Raises DerbyError."""
    try:
        family, kind, protocol, _, _ = getaddrinfo(host.strip("[]"), port, type=SOCK_STREAM)[0]
        with socket(family, kind, protocol) as probe:
            probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port))
            return probe.getsockname()[1]
    except (OSError, OverflowError, UnicodeError) as error:
        raise DerbyError(
            f"Nothing can be served at {host}, port {port} ({error}): choose another."
        ) from error


if __name__ == "__main__":
    typer.run(main)
