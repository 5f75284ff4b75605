"""`decode-derby`: the command line of backend/, and `page`, which serves the page.

Installed, this folder is the package decode_derby, and its modules come before any of their names.
"""

import sys
from pathlib import Path
from runpy import run_module

sys.path.insert(0, str(Path(__file__).resolve().parent))


def command() -> None:
    from app import main
    from backend.cli.main import app

    app.command("page")(main)
    run_module("backend", run_name="__main__")


if __name__ == "__main__":
    command()
