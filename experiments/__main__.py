"""python -m experiments NAME."""

import sys

import typer

from backend.cli.console import complain
from backend.errors import DerbyError
from experiments.built_in import built_in
from experiments.coverage import coverage
from experiments.gpu import gpu
from experiments.train import train

app = typer.Typer(
    help="What developers measure now and then, and how drafts are trained.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (built_in, coverage, gpu, train):
    app.command(command.__name__)(command)


def main() -> None:
    try:
        app()
    except DerbyError as error:
        complain(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
