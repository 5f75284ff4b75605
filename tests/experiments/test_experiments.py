"""What only developers run is importable and says what it takes; nothing of it is measured here."""

import json

import pytest
from typer.testing import CliRunner

from experiments.__main__ import EXPERIMENTS, app


@pytest.mark.parametrize("name", [*(each.name for each in EXPERIMENTS), "gpu", "train"])
def test_every_experiment_says_what_it_takes(name: str) -> None:
    assert name in CliRunner().invoke(app, ["--help"]).stdout
    asked = CliRunner().invoke(app, [name, "--help"])
    assert asked.exit_code == 0
    assert ("--answer-tokens" if name == "train" else "--prompts") in asked.stdout


def test_the_interval_of_a_column_against_itself_is_counted() -> None:
    asked = ["coverage", "--engine", "fake", "--model", "fake-loop", "--rounds", "2", "--wait", "0"]
    printed = CliRunner().invoke(app, asked).stdout
    assert json.loads(printed.splitlines()[-1])[0]["races"] == 2
