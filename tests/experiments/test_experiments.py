"""What only developers run is importable and says what it takes; nothing of it is measured here."""

import pytest
from typer.testing import CliRunner

from experiments.__main__ import EXPERIMENTS, app


@pytest.mark.parametrize("name", [*(each.name for each in EXPERIMENTS), "gpu"])
def test_every_experiment_says_what_it_takes(name: str) -> None:
    assert name in CliRunner().invoke(app, ["--help"]).stdout
    asked = CliRunner().invoke(app, [name, "--help"])
    assert asked.exit_code == 0
    assert "--prompts" in asked.stdout
