"""What a server counts of all its requests, at `/metrics`: text in Prometheus's form.

The names are those of vLLM 0.32, of llama.cpp b10519 (`--metrics`) and of SGLang 0.5
(`--enable-metrics`). Where nothing of these is to be had, nothing is known, and that is no error.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from httpx import Client
    from prometheus_client.metrics_core import Metric

#: Seconds that an answer may take, its bytes, and the lines of it that are read.
_PATIENCE, _MOST_BYTES, _MOST_LINES = 2.0, 1 << 22, 4096

#: Places of a draft that are told apart; what a count may come to.
_MOST_PLACES, _MOST_COUNT = 64, 1 << 39

_NAMES = {
    "vllm:spec_decode_num_drafts_total": "rounds",
    "vllm:spec_decode_num_draft_tokens_total": "drafted",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "places",
    "vllm:generation_tokens_total": "tokens",
    "vllm:num_requests_running": "running",
    "llamacpp:spec_decode_num_drafts_total": "rounds",
    "llamacpp:spec_decode_num_draft_tokens_total": "drafted",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total": "places",
    "llamacpp:tokens_predicted_total": "tokens",
    "llamacpp:requests_processing": "running",
    "sglang:spec_accept_length": "per_pass",
    "sglang:generation_tokens_total": "tokens",
    "sglang:num_running_reqs": "running",
}
_READ = re.compile(rf"(?:{'|'.join(_NAMES)})[ {{]")


@dataclass(frozen=True, slots=True)
class Counters:
    """Of all requests since the server started: rounds with a draft, tokens that drafts offered and
    the target accepted, those accepted in each place of a draft, tokens written. `running`:
    requests at this moment. `per_pass`: tokens that a pass wrote of late, on average. `known`:
    whether anything of drafts was told.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    places: tuple[int, ...] = ()
    tokens: int = 0
    running: int = 0
    per_pass: float = 0.0
    known: bool = False

    def since(self, before: Self) -> "Counters":
        """What was counted since `before`; NOTHING if the server started anew meanwhile."""
        places = tuple(
            now - then
            for now, then in zip(
                self.places, (*before.places, *[0] * len(self.places)), strict=False
            )
        )
        rounds, drafted = self.rounds - before.rounds, self.drafted - before.drafted
        accepted, tokens = self.accepted - before.accepted, self.tokens - before.tokens
        if min(rounds, drafted, accepted, tokens, *places) < 0:
            return NOTHING
        running = max(self.running, before.running)
        return Counters(
            rounds, drafted, accepted, places, tokens, running, self.per_pass, self.known
        )

    def by_others(self, tokens: int) -> bool:
        """Tell whether others used the server too, while a request wrote this many tokens."""
        return self.running > 1 or self.tokens != tokens


NOTHING = Counters()


def counters_of(client: "Client", url: str) -> Counters:
    """What the server of that address counts now; NOTHING where it does not tell. The client's key
    is sent along: the address is of the same origin.
    """
    from httpx import HTTPError, InvalidURL

    try:
        return read_counters(_asked(client, url.rpartition("/")[0] + "/metrics"))
    except (HTTPError, InvalidURL, ValueError):
        return NOTHING


def _asked(client: "Client", url: str) -> str:
    """The answer, "" if it is none, too long or too slow. Raises httpx's HTTPError."""
    until, body = perf_counter() + _PATIENCE, bytearray()
    with client.stream("GET", url, timeout=_PATIENCE) as response:
        kind = response.headers.get("content-type", "")
        if response.status_code != 200 or not kind.startswith("text/plain"):
            return ""
        for piece in response.iter_raw():
            body += piece
            if len(body) > _MOST_BYTES or perf_counter() > until:
                return ""
    return body.decode(errors="replace")


def read_counters(text: str) -> Counters:
    """Read them of a text in Prometheus's form. Raises ValueError where it is none."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = list(_lines(text))
    found: dict[str, int] = dict.fromkeys(("rounds", "drafted", "accepted", "tokens", "running"), 0)
    places, per_pass = dict[int, int](), list[float]()
    for name, place, value in _samples(text_string_to_metric_families("\n".join(lines) + "\n")):
        if name == "per_pass":
            per_pass.append(value)
        elif name == "places":
            places[place] = places.get(place, 0) + int(value)
        else:
            found[name] += int(value)  # of each engine and model
    return Counters(
        **found,
        places=tuple(places.get(place, 0) for place in range(max(places, default=-1) + 1)),
        per_pass=sum(per_pass) / len(per_pass) if per_pass else 0.0,
        known=any("spec_" in line for line in lines),
    )


def _lines(text: str) -> Iterator[str]:
    """The lines that tell what is read; a page of metrics holds thousands of others."""
    wanted = filter(_READ.match, text.split("\n"))
    yield from (line for _, line in zip(range(_MOST_LINES), wanted, strict=False))


def _samples(families: "Iterable[Metric]") -> Iterator[tuple[str, int, float]]:
    """Name, place in a draft and value of each sample that can be one."""
    for family in families:
        for sample in family.samples:
            place = sample.labels.get("position", "0")
            sound = place.isdecimal() and int(place) < _MOST_PLACES
            if isfinite(sample.value) and 0 <= sample.value < _MOST_COUNT and sound:
                yield _NAMES[sample.name], int(place), sample.value
