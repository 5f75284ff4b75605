"""No library that the app uses reports how it is used: README and SECURITY.md promise that."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: What each library would report by, as the app finds it.
PROGRAM = """
import backend
from gradio.analytics import analytics_enabled
from huggingface_hub.constants import HF_HUB_DISABLE_TELEMETRY
from nncf.telemetry.wrapper import NNCFTelemetry, telemetry
from openvino.tools.ovc.telemetry_utils import init_ovc_telemetry

print(isinstance(telemetry, NNCFTelemetry), type(init_ovc_telemetry()).__module__)
print(not HF_HUB_DISABLE_TELEMETRY, analytics_enabled())
"""


def test_no_library_reports_how_it_is_used(tmp_path: Path) -> None:
    """ "There is no telemetry", said README. OpenVINO and NNCF sent conversions to Google Analytics
    and kept an id of the machine in its user's folder, ~/intel.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "openvino.tools.ovc.telemetry_stub", "False", "False"]
    assert not (tmp_path / "intel").exists()
