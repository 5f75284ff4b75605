import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(("until", "skipped"), [("1", "1 passed, 1 skipped"), ("inf", "2 passed")])
def test_when_ci_s_time_is_over_thorough_tests_alone_are_skipped(
    tmp_path: Path, until: str, skipped: str
) -> None:
    """CI took 24 minutes, and on a machine that had become five times as slow would not have ended
    within its time.
    """
    code = "import pytest\ndef test_a(): pass\n@pytest.mark.thorough\ndef test_b(): pass\n"
    (tmp_path / "test_two.py").write_text(code)
    environment = {**os.environ, "DERBY_TESTS_UNTIL": until, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "test_two.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert skipped in done.stdout.decode()
