"""python -m backend serve."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import say
from backend.cli.options import Device, EngineName, Precision, Target
from backend.engines.registry import engine_named, offered_engines
from backend.errors import DerbyError
from backend.limits import limits_of
from backend.machine import LOOPBACK
from backend.models.files import BUILT_IN
from backend.racing.hosts.process import ProcessHost
from backend.racing.preparation import fetch_offered
from backend.serving.app import CompletionApi
from backend.serving.models import Offered
from backend.serving.server import server_of
from backend.web.address import bound
from backend.web.offer import models_named, offer_of

#: What the key may be in, where no file holds it.
VARIABLE = "DECODE_DERBY_API_KEY"

#: The longest key, in characters.
LONGEST_KEY = 4096


def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0: any free one.")] = 8080,
    model: Annotated[
        list[str], typer.Option(help="Also offer this folder, GGUF file or Hub id. Repeatable.")
    ] = [],  # noqa: B006 (typer copies it)
    engine: EngineName = "openvino",
    precision: Precision = "",
    device: Device = "CPU",
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"A file with the key that clients must send; or set {VARIABLE}."),
    ] = None,
    limit: Annotated[list[str], typer.Option(help="Set a limit, as NAME=VALUE. Repeatable.")] = [],  # noqa: B006
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    key = api_key(api_key_file)
    if host.strip("[]") not in LOOPBACK and not key:
        raise DerbyError(
            f"Anyone who reaches {host} could use this server: set a key with --api-key-file FILE "
            f"or {VARIABLE}, or use --host 127.0.0.1."
        )
    limits = limits_of(limit, public=host.strip("[]") not in LOOPBACK)
    demo = engine_named(engine).demo
    engines = offered_engines(demo=demo)
    named = models_named(model, engines)
    models = named if demo else (BUILT_IN, *named)
    # No request has anything fetched: what is offered is here before the first one.
    offer = offer_of(engines, models, replace(limits, hub_bytes=0))
    target = Target(offer.models[0], engine, precision, device).spec
    offer.require_target(target)
    with bound(host, port) as listening:
        if not demo:
            fetch_offered(named, say)
        races = ProcessHost(() if demo else (target,), limits)
        closing = threading.Thread(target=races.close, daemon=True)
        try:
            # The usual precision is a matter of each model's size.
            own = {each: Target(each, engine, precision, device).spec for each in named}
            app = CompletionApi(races, Offered(offer, target, own), key).app()
            listening.listen()  # from now on nobody is turned away
            where = f"http://{host}:{listening.getsockname()[1]}/v1"
            print(f"Decode Derby answers at {where}", flush=True)
            server_of(app, closing.start).run([listening])
        except KeyboardInterrupt:
            pass
        finally:
            for asked in (signal.SIGINT, signal.SIGTERM):
                signal.signal(asked, signal.SIG_IGN)  # it is ending already
            if closing.ident is None:
                closing.start()
            closing.join()


def api_key(file: Path | None) -> str:
    """The key that clients must send; "": none. Raises DerbyError for a file that holds none."""
    if file is None:
        key, where = os.environ.get(VARIABLE, "").strip(), VARIABLE
        if not key:
            return ""
    else:
        where = str(file)
        try:
            with file.open(encoding="utf-8") as opened:
                key = opened.read(LONGEST_KEY + 2).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DerbyError(f"The API key cannot be read from {file}: {error}.") from error
    if not (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable() and " " not in key):
        raise DerbyError(
            f"{where} holds no API key: write one of 1 to {LONGEST_KEY} letters, digits and signs, "
            "without spaces, and nothing else."
        )
    return key
