"""The page's form as it is first shown, and a page that offers it."""

from typing import Any

from backend.strategies.registry import DEFAULT_COLUMNS
from backend.web.offer import Offer, Runtime

HIDDEN = "/srv/secret/models/llama"
MENU = Offer(
    (
        Runtime("openvino", "OpenVINO", ("fp32", "int8", "int4", "int4-exact"), ("CPU", "AUTO")),
        Runtime("torch", "PyTorch", ("fp32", "bf16"), ("CPU",)),
    ),
    ("built-in", HIDDEN, "owner/model"),
)


def filled(**changes: Any) -> dict[str, Any]:
    """The form as the page first shows it, with changes; "__" in a name stands for a dot."""
    values: dict[str, Any] = {
        "prompt": "Hello",
        "max_new_tokens": 128,
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "seed": 0,
        "stop": "",
        "ignore_eos": False,
        "chat": True,
        "context": 0,
        "heal": True,
        "thinking": "",
        "top": 0,
        "measure": False,
        "lineup": "\n".join(DEFAULT_COLUMNS),
        "model": "0",
        "model.hub": "",
        "engine": "openvino",
        "precision": "fp32",
        "device": "CPU",
        "grammar.kind": "lark",
        "grammar.text": "",
    }
    return values | {name.replace("__", "."): value for name, value in changes.items()}
