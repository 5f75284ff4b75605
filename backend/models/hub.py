"""Models of the Hugging Face Hub, in the Hub's own cache, which other programs share."""

import re
from collections.abc import Callable
from glob import escape
from pathlib import Path

from backend.errors import NO_ROOM, DerbyError

#: Without what the Hub does not allow in it. Behind a colon, one of the repository's GGUF files.
HUB_ID = re.compile(
    r"(?!.*(--|\.\.|\.git(:|$)))\w[\w.-]{0,95}/\w[\w.-]{0,95}(:\w[\w.-]{0,195}\.gguf)?", re.ASCII
)

#: A ready-made OpenVINO model, graph and weights: data as well, though its weights end in .bin.
IR = ("openvino_model.xml", "openvino_model.bin")

#: What is fetched from the Hub: data only, top folder only, never pickles or code.
WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt", *IR)
UNWANTED = ("*/*", "consolidated*")

Say = Callable[[str], None]

#: Folders that this process has asked the Hub about: a model stays the same until the next start.
_fetched: dict[str, Path] = {}


def hub_folder(name: str, say: Say, *, download: bool = True) -> Path:
    """The folder of the Hub model `name`, fetched unless it is in the Hub's cache.

    Where the Hub cannot be reached, or without `download`, what is in that cache serves. Raises
    DerbyError for a model that cannot be had.
    """
    if name in _fetched:
        return _fetched[name]
    import httpx
    from huggingface_hub import snapshot_download

    repository, _, file = name.partition(":")
    # The other parts of a file in several come with the first.
    patterns = [escape(file).replace("-00001-of-", "-?????-of-")] if file else WANTED
    if download:
        say(f"Fetching {name} from the Hub...")
    try:
        folder = snapshot_download(
            repository,
            allow_patterns=list(patterns),
            ignore_patterns=list(UNWANTED),
            local_files_only=not download,
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        if not download:
            raise DerbyError(
                f"The Hub model {name!r} is not here, and downloads from the Hub are off (the "
                "limit hub is 0): choose an offered model."
            ) from error
        raise DerbyError(
            f"The Hub model {name!r} could not be fetched ({type(error).__name__}): check the id "
            "and the network, log in if the model is gated, or use 'built-in'."
        ) from error
    _fetched[name] = Path(folder)
    return _fetched[name]
