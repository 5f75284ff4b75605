"""What may be wrong with a checkpoint's files, as sentences: mostly transformers' own error."""

import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from backend.errors import DerbyError

log = logging.getLogger(__name__)

#: How libraries ask for leave to run code of a repository.
_FOREIGN_CODE = re.compile("trust_remote_code|custom code|remote code", re.IGNORECASE)

#: The folders before a file's name, in quotes with their spaces; addresses on the web stay.
_FOLDERS = re.compile(
    r"""(?<=['"])[~.]*/[^'"\n]*/|(?<![\w/])(?<!http:)(?<!https:)[~.]*/+(?:[^\s'"]*/)?"""
)


def read_object(path: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of the model `name`. Raises DerbyError if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DerbyError(f"The {path.name} of {name!r} is not a JSON object: fetch it again.")
    return content


def quantised_as(config: Mapping[str, Any]) -> str:
    """The format of the weights by a config.json; "" if they are plain."""
    quantised = config.get("quantization_config") or {}
    return str(quantised.get("quant_method", "unknown")) if quantised else ""


def require_all_weights(loaded: Mapping[str, Collection[Any]], name: str) -> None:
    """Raise DerbyError for weights that the model `name` lacks, or whose shapes are not those of
    its configuration: transformers would draw them at random. `loaded` is its loading report.
    """
    wrong = [tensor for tensor, *_ in loaded["mismatched_keys"]] + [*loaded["missing_keys"]]
    if wrong:
        raise DerbyError(
            f"Tensors of {name!r} are missing or do not fit its config.json, such "
            f"as {min(wrong):.100}: fetch weights and config.json again."
        )


def without_folders(text: str) -> str:
    """What a library said, with files and folders by their own names: a page has guests."""
    return _FOLDERS.sub("", text)


def loading_error(name: str, what: str, error: Exception) -> DerbyError:
    """What a library said that could not read a model's files, as one sentence: `what` could not
    be done. A suggestion to run code of the model's repository is not passed on.
    """
    log.info("%s: %s", what, error, exc_info=error)
    if _FOREIGN_CODE.search(str(error)):
        return DerbyError(
            f"The model {name!r} needs code from its own repository, which Decode Derby does not "
            f"run: choose a model of a standard architecture."
        )
    words = without_folders(" ".join(f"{type(error).__name__}: {error}".split()))
    return DerbyError(f"{what} ({words:.200}): choose another model, or fetch its files again.")
