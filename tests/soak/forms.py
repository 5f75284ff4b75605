"""Forms that the rows fill in, and the moments of a race at which they disturb it."""

from collections.abc import Sequence
from typing import Any

from soak.client import View

#: A prompt to which the fake model writes a text of more than 3,900 tokens.
LONG = "Long one 7"

#: Keys of the fake models on a page that offers them.
FAKE, FAKE_SLOW = "0", "1"


def form(prompt: str, tokens: int, *lineup: str, model: str = FAKE, **more: Any) -> dict[str, Any]:
    """What a visitor types: a prompt, columns as text, a limit of tokens and a model's key."""
    return {
        "ask": prompt,
        "max_new_tokens": tokens,
        "lineup": {"text": "\n".join(lineup or ("kv", "lookup"))},
        "Model": model,
        **more,
    }


def endless(*lineup: str, tokens: int = 3900) -> dict[str, Any]:
    """A race that takes minutes: 20 ms a step."""
    return form(LONG, tokens, *lineup, model=FAKE_SLOW)


def asked(view: View) -> bool:
    """From the first view on."""
    return True


def racing(view: View) -> bool:
    return view.get("phase") == "racing"


def decoding(view: View) -> bool:
    """Some column has written something."""
    return any(column["rounds"] for column in view.get("columns", ()))


def states(view: View) -> Sequence[str]:
    """The state of each column of a view, () for a refusal."""
    return [column["state"] for column in view.get("columns", ())]


def ended(view: View) -> bool:
    return view.get("phase") == "ended"
