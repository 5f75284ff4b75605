"""The launch: limits are strict where others can reach the page, and no library that the app uses
reports how it is used, as README.md and SECURITY.md promise.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import app

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
    """OpenVINO and NNCF would send conversions to Google Analytics, with an id in ~/intel."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["False", "openvino.tools.ovc.telemetry_stub", "False", "False"]
    assert not (tmp_path / "intel").exists()


@pytest.mark.parametrize(
    ("host", "share", "space", "public"),
    [
        ("127.0.0.1", False, "", False),
        ("127.0.0.1", True, "", True),
        ("127.0.0.1", False, "me/derby", True),
        ("0.0.0.0", False, "", True),  # noqa: S104
    ],
)
def test_limits_are_strict_where_others_can_reach_the_page(
    host: str, *, share: bool, space: str, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPACE_ID", raising=False)
    if space:
        monkeypatch.setenv("SPACE_ID", space)
    assert app.is_public(host, share=share) == public
