"""All of the app but the page: one package a subject, in layers that `lint-imports` holds."""

import os
import sys
from typing import Any, cast

# These libraries report how they are used unless told not to, in whichever process they run.
for _name, _value in (
    ("GRADIO_ANALYTICS_ENABLED", "False"),
    ("HF_HUB_DISABLE_TELEMETRY", "1"),
    ("RAY_USAGE_STATS_ENABLED", "0"),
):
    os.environ.setdefault(_name, _value)

# OpenVINO and NNCF send to Google Analytics by this package, without asking and without a variable
# that turns it off; they do without it where it cannot be imported.
sys.modules.setdefault("openvino_telemetry", cast("Any", None))
