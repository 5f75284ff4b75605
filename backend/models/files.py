"""What a model's name means and where its files are: built-in, a local folder, or the Hub."""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from backend.errors import NO_ROOM, DerbyError
from backend.models.builtin import FINGERPRINT, IR, built_in_folder, built_in_gguf
from backend.models.prepared import Say

BUILT_IN = "built-in"

#: What the built-in model is called by those who made it.
BUILT_IN_TITLE = "SmolLM2-135M-Instruct"

SUFFIX = ".gguf"

#: Names under which configs state how far sliding layers see (the second is GPT-Neo's).
WINDOWS = ("sliding_window", "window_size")

#: Names under which they state the longest context, if not under transformers' own (MPT, BLOOM).
LENGTHS = ("max_position_embeddings", "max_seq_len", "seq_length")

#: Tokens that a model which states no limit may read: one with ALiBi, or with a recurrent state.
ENDLESS_CONTEXT = 1 << 15

#: What titles stand for in this process.
_titles: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A Hugging Face folder with its weights, and what every engine must know of it. `ready_made`
    ones hold an OpenVINO model (IR). Layers in `sliding` see only the last `window` positions.
    `row_bytes`: a token's share of a float32 KV cache; 0: not known, as of `layers`, the decoder's,
    and of `hidden`, the size of their hidden states.
    """

    folder: Path
    fingerprint: str
    max_context: int
    vocab_size: int
    eos_ids: frozenset[int]
    window: int = 0
    sliding: tuple[bool, ...] = ()
    ready_made: bool = False
    row_bytes: int = 0
    layers: int = 0
    hidden: int = 0


def weights_in(folder: Path) -> int:
    """How many weights a folder's safetensors files have, by their headers. Raises DerbyError for a
    damaged one.
    """
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in folder.glob("*.safetensors"):
        if path.name.startswith("consolidated"):  # the same weights, in their makers' own format
            continue
        try:
            with safe_open(path, "numpy") as file:
                names = file.offset_keys()
                count += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
        except (SafetensorError, OSError) as error:
            raise DerbyError(
                f"{path.name} of {folder.name!r} is damaged or incomplete ({error!s:.100}): fetch "
                "it again."
            ) from error
    return count


def model_title(name: str) -> str:
    """What people call the model of that name."""
    return BUILT_IN_TITLE if name == BUILT_IN else name


def short_title(name: str) -> str:
    """The last part of a model's name or path."""
    return name.rstrip("/").rpartition("/")[2]


def is_path(name: str) -> bool:
    """True of a model's name that is a place on this machine."""
    return name.startswith((".", "~")) or Path(name).is_absolute()


def is_gguf(name: str) -> bool:
    """Whether a model's name is a GGUF file's, which llama.cpp runs."""
    return name.lower().endswith(SUFFIX) or bool(":" in name and HUB_ID.fullmatch(name))


def give_titles(titles: Mapping[str, str]) -> None:
    """Have these names stand for those places or Hub ids in this process, from now on: what a page
    offers has titles, and no sentence, event or record there holds a path.
    """
    _titles.update(titles)


def path_of(name: str) -> Path:
    """The absolute path that somebody wrote; where nobody is called so, ~NAME stays as it is."""
    return Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 (pathlib's raises, also of ./~)


def _place(name: str, say: Say, *, download: bool = True) -> Path:
    """The folder or file that a name other than the built-in model's stands for."""
    name = _titles.get(name, name)
    if is_path(name):
        return path_of(name)
    if HUB_ID.fullmatch(name):
        folder, file = hub_folder(name, say, download=download), name.partition(":")[2]
        return _gguf_in(folder, file) if file else folder
    raise DerbyError(
        f"There is no model {name!r}: write {BUILT_IN!r}, a folder or GGUF file starting with '/', "
        "'.' or '~', or a Hub id such as owner/model."
    )


def gguf_file(name: str, say: Say) -> Path:
    """The GGUF file called `name`: the built-in model's, a path, or the Hub's "owner/model:FILE".
    Raises DerbyError if there is none.
    """
    if name == BUILT_IN:
        return built_in_gguf(say)
    file = _place(name, say)
    if file.suffix.lower() != SUFFIX or not file.is_file():
        raise DerbyError(
            f"{name!r} is no GGUF file, and llama.cpp reads only those: name one, of a folder as "
            "folder/FILE, of the Hub as owner/model:FILE or owner/model:Q4_K_M, or choose another "
            "column."
        )
    return file


def model_folder(name: str, say: Say, *, download: bool = True) -> Path:
    """The folder of the model called `name`, fetched if need be: "built-in", a folder (absolute, or
    starting with "." or "~"), or a Hub id "owner/model". `say` receives short sentences about what
    takes long. Raises DerbyError unless it has a configuration and weights without code.
    """
    if name == BUILT_IN:
        return built_in_folder(say)
    folder = _place(name, say, download=download)
    if folder.suffix.lower() == SUFFIX:
        raise DerbyError(
            f"{name!r} is a GGUF file, which llama.cpp runs: choose its column, -c llamacpp, or "
            "the model's safetensors."
        )
    if not folder.is_dir():
        raise DerbyError(f"There is no model folder {name!r}: check the path.")
    weights = is_ready_made(folder) or any(folder.glob("*.safetensors"))
    if not weights or not (folder / "config.json").is_file():
        raise DerbyError(
            f"{name!r} is not a model folder: it needs config.json and *.safetensors files (no "
            f"pickles, which can run code), or {IR[0]} and {IR[1]}."
        )
    return folder


def is_ready_made(folder: Path) -> bool:
    """Whether the weights are an OpenVINO model's alone; safetensors, if there are any, win."""
    return all((folder / name).is_file() for name in IR) and not any(folder.glob("*.safetensors"))


def stored_precision(folder: Path) -> str:
    """In how many bits a ready-made OpenVINO model stores its weights, as precisions call it: int4
    models keep their embeddings and their output projection in int8.
    """
    graph = (folder / IR[0]).read_bytes()
    for precision, kinds in (("int4", rb"[ui]4|nf4"), ("int8", rb"[ui]8")):
        if re.search(rb'element_type="(%b)"' % kinds, graph):
            return precision
    return "fp32"


def model_files(name: str, say: Say) -> ModelFiles:
    """The files of the model called `name`: see model_folder. Raises DerbyError if there is no such
    model, or its configuration cannot be read.
    """
    folder = model_folder(name, say)
    with loading(name, f"The config.json of {name!r} cannot be read"):
        config = _text_config(folder, name)
        window, sliding = _window(config)
        return ModelFiles(
            folder=folder,
            fingerprint=FINGERPRINT if name == BUILT_IN else fingerprint_of(folder),
            max_context=_max_context(config),
            vocab_size=config["vocab_size"],
            eos_ids=_eos_ids(folder, name, config.get("eos_token_id")),
            window=window,
            sliding=sliding,
            ready_made=is_ready_made(folder),
            row_bytes=_row_bytes(config),
            layers=config.get("num_hidden_layers") or 0,
            hidden=config.get("hidden_size") or 0,
        )


def fingerprint_of(folder: Path) -> str:
    """Equal ones mean the same weights: of the Hub's commit, or of the folder and its files' sizes
    and times. None of their bytes are read.
    """
    if folder.parent.name == "snapshots":
        facts = [folder.parent.parent.name, folder.name]
    else:
        files = sorted(
            (folder / "config.json", *folder.glob("*.safetensors"), *map(folder.joinpath, IR))
        )
        stats = [(path.name, path.stat()) for path in files if path.is_file()]
        facts = [str(folder), *(f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in stats)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def _text_config(folder: Path, name: str) -> dict[str, Any]:
    """The language model's configuration, with context length and vocabulary size stated."""
    config = read_object(folder / "config.json", name)
    special = any(map(config.get, WINDOWS)) or "long_factor" in str(config)
    if _is_complete(config) and not special:
        return config
    # Where sizes are left to the architecture's defaults, or nested, and for which layers slide,
    # transformers knows; it takes seconds to import, so it is asked only then.
    from transformers import AutoConfig

    checkpoint = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    text = checkpoint.get_text_config(decoder=True)
    length = next(filter(None, (getattr(text, name, None) for name in LENGTHS)), None)
    config = {**text.to_dict(), "max_position_embeddings": length or ENDLESS_CONTEXT}
    if not _is_complete(config):
        raise DerbyError(
            f"The {text.model_type} model in {name!r} does not state its vocabulary size: choose "
            "a causal language model."
        )
    return config


def _is_complete(config: dict[str, Any]) -> bool:
    sizes = (config.get(name) for name in ("max_position_embeddings", "vocab_size"))
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _max_context(config: dict[str, Any]) -> int:
    """The longest text in tokens. Longrope positions have other factors beyond the original length:
    texts end there.
    """
    ropes = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # They are stated once, or for each type of layer.
    originals = [
        rope["original_max_position_embeddings"]
        for rope in (ropes, *ropes.values())
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope"
    ]
    return min([config["max_position_embeddings"], *originals])


def _window(config: dict[str, Any]) -> tuple[int, tuple[bool, ...]]:
    """How many positions sliding layers see, and which layers slide: (0, ()) where none does."""
    window = next(filter(None, map(config.get, WINDOWS)), 0)
    kinds = config.get("layer_types") or config.get("attention_layers")
    layers = config.get("num_hidden_layers", 0)
    sliding = tuple(kind in ("sliding_attention", "local") for kind in kinds or ["local"] * layers)
    # Qwen states a window and says beside it that it is not used.
    if not window or not any(sliding) or not config.get("use_sliding_window", True):
        return 0, ()
    return window, sliding


def _row_bytes(config: dict[str, Any]) -> int:
    """ModelFiles.row_bytes, of the names that nearly all configurations use."""
    layers, heads, width = map(
        config.get, ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    if not (layers and heads and width):
        return 0
    head = config.get("head_dim") or width // heads
    return 2 * 4 * layers * (config.get("num_key_value_heads") or heads) * head


def _eos_ids(folder: Path, name: str, fallback: Any) -> frozenset[int]:
    """Every id that ends a text: generation_config.json's, or else the model config's."""
    path = folder / "generation_config.json"
    ids = read_object(path, name).get("eos_token_id") if path.is_file() else None
    ids = fallback if ids is None else ids
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(each, int) for each in ids):
        raise DerbyError(
            f"The eos_token_id of {name!r} is {ids!r:.60}; it must be a token's number, or a list "
            "of them: correct it in generation_config.json or config.json."
        )
    return frozenset(ids)


#: Without what the Hub does not allow in it. Behind a colon, one of the repository's GGUF files, or
#: what such a file is called by its quantisation alone.
HUB_ID = re.compile(
    r"(?!.*(--|\.\.|\.git(:|$)))\w[\w.-]{0,95}/\w[\w.-]{0,95}"
    r"(:(\w[\w./-]{0,195}\.(?i:gguf)|\w[\w-]{0,39}))?",
    re.ASCII,
)

#: What is fetched from the Hub: data only, top folder only, never pickles or code.
WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt", *IR]
UNWANTED = ["*/*", "consolidated*"]


def _patterns(file: str) -> tuple[list[str], list[str]]:
    """Which files of a repository are wanted, and which of these are not: of one GGUF file, by its
    name or its quantisation, all parts.
    """
    if not file:
        return WANTED, UNWANTED
    if file.lower().endswith(SUFFIX):
        return [escape(file).replace("-00001-of-", "-?????-of-")], []
    any_case = (f"[{c.lower()}{c.upper()}]" if c.isalpha() else c for c in f"{file}*{SUFFIX}")
    quant, suffix = "".join(any_case).split("*")
    ends = (suffix, f"-?????-of-?????{suffix}")
    return [f"{start}{quant}{end}" for start in ("", "*[-._/]") for end in ends], ["*mmproj*"]


def _gguf_in(folder: Path, file: str) -> Path:
    """The GGUF file of a fetched repository, or the first of its parts."""
    from huggingface_hub.utils import (
        filter_repo_objects,  # pyright: ignore[reportPrivateImportUsage] (it is documented)
    )

    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    wanted, unwanted = _patterns(file)
    fitting = filter_repo_objects(names, allow_patterns=wanted, ignore_patterns=unwanted)
    return folder / min(fitting, key=len, default=file)  # others have more in front of it


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
    wanted, unwanted = _patterns(file)
    if download:
        say(f"Fetching {name} from the Hub...")
    try:
        folder = snapshot_download(
            repository,
            allow_patterns=wanted,
            ignore_patterns=unwanted,
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


@contextmanager
def loading(name: str, what: str) -> Iterator[None]:
    """Raise what a library says that cannot read a model's files, whatever their makers wrote, as
    one sentence: `what` cannot be done. A suggestion to run code of the model's repository is not
    passed on.
    """
    try:
        yield
    except (DerbyError, MemoryError):
        raise
    except Exception as error:
        log.info("%s: %s", what, error, exc_info=error)
        if _FOREIGN_CODE.search(str(error)):
            raise DerbyError(
                f"The model {name!r} needs code from its own repository, which Decode Derby does "
                "not run: choose a model of a standard architecture."
            ) from error
        words = without_folders(" ".join(f"{type(error).__name__}: {error}".split()))
        sentence = f"{what} ({words:.200}): choose another model, or fetch its files again."
        raise DerbyError(sentence) from error
