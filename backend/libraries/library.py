"""The seam between a race and a library that decodes by itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from backend.decoding.sampling import COLDEST
from backend.engines.engine import EngineDeclaration
from backend.errors import DerbyError
from backend.events import Reason
from backend.tokenizer import Tokenizer
from backend.types import ModelSpec, Request

#: A setting that names no draft, or no way to draft.
NO_DRAFT = "none"

#: The value of one that was trained for the built-in model.
TRAINED = "trained"

#: The values of a column's settings by name.
Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a library wrote in one round: `tokens`, or where it gives no ids their `text`, and how
    many they are (`count`; of `tokens` it need not be given; 0: not known). `seconds` since the
    chunk before, or since the request, by the library's own clock; None: it has none.

    Of a draft's tokens `drafted` were offered in the round (0: not known) and `accepted` passed.
    `finish`: why the answer ended, if the library says.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    count: int = 0
    seconds: float | None = None
    drafted: int = 0
    accepted: int = 0
    finish: Reason | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What is known of a server's answer as a whole, later ones in place of earlier ones. `clock`:
    whose the seconds of its chunks are; "own": as good as a column's own.
    """

    clock: Literal["own", "server", "network"] = "own"
    prompt_tokens: int = 0


#: Takes what is written as it comes. Raises StoppedError once nobody wants more, which a library
#: lets pass.
Emit = Callable[[Chunk | Serving], None]


class StoppedError(Exception):
    """The column has ended: whoever generates for it gives up."""


class LibraryModel(Protocol):
    """What a library has loaded, with the tokenizer of the model's folder (None: only the library
    has one, and gives text). `spec` None, `max_context` 0: not known.
    """

    @property
    def spec(self) -> ModelSpec | None: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def max_context(self) -> int: ...

    def prepare(self, request: Request, settings: Settings) -> None:
        """Load, on no clock, what this answer needs beside the model. Raises DerbyError."""
        ...

    def answer(self, request: Request, settings: Settings, emit: Emit) -> None:
        """Write one answer. Raises DerbyError for what the library cannot do."""
        ...

    def stop(self) -> None:
        """Break off an answer that nobody wants any more, where `emit` would tell it late."""
        ...


@dataclass(frozen=True, slots=True)
class Library:
    """A library. `declaration` says which precisions and devices it has, and opens a LibraryModel;
    None: nothing is loaded here, and `elsewhere` answers. `like` is the engine of ours whose
    precision and device a column takes over from its race. `takes_turns`: its callback is called
    in the generating thread, so that holding the one holds the other; a column of any other runs
    alone.
    """

    name: str
    declaration: EngineDeclaration | None = None
    elsewhere: LibraryModel | None = None
    like: str = ""
    takes_turns: bool = False


def sampling_arguments(request: Request) -> dict[str, Any]:
    """How long an answer is and how its tokens are chosen, by the names that transformers and
    openvino-genai have for it.
    """
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "repetition_penalty": float(sampling.repetition_penalty),
        "do_sample": sampling.temperature >= COLDEST,
    }
    if arguments["do_sample"]:
        arguments |= {
            "temperature": float(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": float(sampling.top_p),
            "min_p": float(sampling.min_p),
        }
    return arguments


def require_package(package: str) -> None:
    """Raise DerbyError with the command that installs an optional library, unless it is there."""
    if find_spec(package) is None:
        raise DerbyError(
            f"{package} is not installed: run pip install -r requirements-libraries.txt, or "
            "install decode-derby[libraries]."
        )
