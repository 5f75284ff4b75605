"""What one message of a stream says, in any of the forms that servers give it.

The forms: OpenAI's chat and completion chunks, which compatible servers send; llama.cpp's
`timings`; vLLM's usage in every chunk, its `token_ids`, and its `metrics` (pull request 48915);
SGLang's `sglext` (its pull request 33518), and OpenAI's own details of predicted tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Any

from backend.errors import DerbyError

#: Figures of a server beyond that are none: a year in seconds, tokens of any context, ids of any
#: vocabulary, gaps between any logits.
_MOST_SECONDS, _MOST_TOKENS, _MOST_ID, _MOST_GAP = 3e7, 1 << 30, 1 << 30, 1e6


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds by the server's own clock since it took the request: reading the prompt, and writing
    `tokens`; how many of them a draft offered, and the target accepted.
    """

    prompt: float
    decode: float
    prompt_tokens: int
    tokens: int
    drafted: int
    accepted: int

    @property
    def seconds(self) -> float:
        return self.prompt + self.decode


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a message says; of what it does not tell "", 0 or nothing.

    `ids`: the tokens of `text`. `gaps`: between the two most probable tokens in the place of each,
    in natural logarithms; inf: not told. `written`: tokens of the whole answer so far. `finish`:
    why the answer ended. `drafted`, `accepted`: of the whole answer, told at its end.
    """

    text: str = ""
    ids: tuple[int, ...] = ()
    gaps: tuple[float, ...] = ()
    prompt_tokens: int = 0
    written: int = 0
    finish: str = ""
    timings: Timings | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def count(self) -> int:
        """How many tokens `text` is."""
        return len(self.ids) or len(self.gaps)

    @property
    def so_far(self) -> int:
        """Tokens of the whole answer so far."""
        return self.timings.tokens if self.timings is not None else self.written

    def behind(self, held: "Chunk") -> "Chunk":
        """The same, with the tokens of one before it that had no text yet: half a character."""
        return replace(self, ids=held.ids + self.ids, gaps=held.gaps + self.gaps)

    def updated(self, later: "Chunk") -> "Chunk":
        """What the two tell of the whole answer, the later one first."""
        return Chunk(
            prompt_tokens=later.prompt_tokens or self.prompt_tokens,
            written=later.so_far or self.written,
            drafted=later.drafted or self.drafted,
            accepted=later.accepted or self.accepted,
        )


def read_chunk(message: Mapping[str, Any]) -> Chunk:
    """Raises DerbyError for an error that the message tells, and for what is no answer."""
    if message.get("error"):
        raise DerbyError(f"The server says: {_told(message['error'])}")
    choices = message.get("choices")
    if choices is not None and not isinstance(choices, list):
        raise _strange()
    choice = _table(choices[0]) if choices else {}
    delta = _table(choice.get("delta"))
    thought = delta.get("reasoning_content") or delta.get("reasoning")  # Ollama's, vLLM's of late
    texts = [thought, delta.get("content"), choice.get("text")]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise _strange()
    usage = _table(message.get("usage"))
    drafted, accepted = _guessed(message, usage)
    finish, timings = choice.get("finish_reason"), _timings(message.get("timings"))
    return Chunk(
        "".join(text for text in texts if text).encode(errors="replace").decode(),
        _ids(choice.get("token_ids")),
        _gaps(_table(choice.get("logprobs"))),
        timings.prompt_tokens if timings is not None else _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        "stop string" if _stopped_by_text(choice) else str(finish or ""),
        timings,
        drafted,
        accepted,
    )


def _stopped_by_text(choice: Mapping[str, Any]) -> bool:
    """VLLM and SGLang tell the string, or the number of a token, that ended an answer."""
    return any(isinstance(choice.get(name), str) for name in ("stop_reason", "matched_stop"))


def _guessed(message: Mapping[str, Any], usage: Mapping[str, Any]) -> tuple[int, int]:
    """How many tokens a draft offered, and how many the target accepted, of the whole answer."""
    vllm = _table(_table(message.get("metrics")).get("speculative_decoding"))
    sglang = _table(_table(message.get("sglext")).get("spec_tokens_details"))
    openai = _table(usage.get("completion_tokens_details"))
    accepted = _count(openai.get("accepted_prediction_tokens"))
    told = (
        (vllm.get("num_draft_tokens"), vllm.get("num_accepted_draft_tokens")),
        (sglang.get("spec_num_proposed_drafts"), sglang.get("spec_num_correct_drafts")),
        (accepted + _count(openai.get("rejected_prediction_tokens")), accepted),
    )
    counts = [(_count(drafted), _count(taken)) for drafted, taken in told]
    return next((each for each in counts if each[0]), (0, 0))


def _told(error: Any) -> str:
    """An error's message, as much of it as fits a card."""
    return printable(str(error.get("message") if isinstance(error, dict) else error))


def printable(text: str) -> str:
    """A server's words as a sentence can hold them: on a line, 200 characters at most."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:200]


def _strange() -> DerbyError:
    return DerbyError("The server is not OpenAI-compatible: check its address.")


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    """A number of tokens; 0 of anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= _MOST_TOKENS else 0


def _number(value: Any) -> float:
    """A number; NaN of anything else, and of what is too large to be one."""
    try:
        return float(value) if isinstance(value, int | float) else nan
    except OverflowError:
        return nan


def _seconds(milliseconds: Any) -> float | None:
    seconds = _number(milliseconds) / 1e3
    return seconds if 0 <= seconds <= _MOST_SECONDS else None


def _ids(value: Any) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else []
    sound = all(type(i) is int and 0 <= i <= _MOST_ID for i in ids)
    return tuple(ids) if sound else ()


def _gaps(logprobs: Mapping[str, Any]) -> tuple[float, ...]:
    """The gap in each place, of chat's form ("content") or completions' ("top_logprobs")."""
    places = logprobs.get("content")
    if isinstance(places, list):
        tops = [_table(place).get("top_logprobs") for place in places]
        return tuple(
            _gap([_table(each).get("logprob") for each in top] if isinstance(top, list) else [])
            for top in tops
        )
    tops, tokens = logprobs.get("top_logprobs"), logprobs.get("tokens")
    if not isinstance(tokens, list):
        return ()
    if not isinstance(tops, list) or len(tops) != len(tokens):
        return (inf,) * len(tokens)
    return tuple(_gap(list(_table(top).values())) for top in tops)


def _gap(values: Sequence[Any]) -> float:
    known = sorted(filter(isfinite, map(_number, values)), reverse=True)
    gap = known[0] - known[1] if len(known) > 1 else inf
    return gap if gap <= _MOST_GAP else inf


def _timings(value: Any) -> Timings | None:
    table = _table(value)
    prompt, decode = _seconds(table.get("prompt_ms")), _seconds(table.get("predicted_ms"))
    if prompt is None or decode is None:
        return None
    names = ("prompt_n", "predicted_n", "draft_n", "draft_n_accepted")
    prompt_tokens, tokens, drafted, accepted = (_count(table.get(name)) for name in names)
    prompt_tokens += _count(table.get("cache_n"))
    return Timings(prompt, decode, prompt_tokens, tokens, drafted, min(accepted, drafted))
