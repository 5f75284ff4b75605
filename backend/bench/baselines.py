"""The best plain loops of the same engines, to show that the baseline is not a weak one.

All are timed alike: wall time from the first token's arrival to the last one's, greedy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from backend.bench.prompts import Prompt
from backend.errors import DerbyError
from backend.events import Event, Step
from backend.models.files import model_files
from backend.racing.models import LoadedModels
from backend.racing.race import Race, run_race
from backend.strategies.registry import BASELINE, STRATEGIES
from backend.types import ModelSpec, Request

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Median decode tokens per second of both, the median of per-prompt ratios (ours over the
    peer's) with their lowest and highest, and on how many prompts the token ids were the same.
    """

    peer: str
    ours: float
    theirs: float
    ratio: float
    spread: tuple[float, float]
    equal: int
    prompts: int


class Arrivals:
    """When each token arrived, and which it was."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._times: list[float] = []

    def add(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self._times.append(perf_counter())

    @property
    def speed(self) -> float:
        """Tokens per second after the first."""
        return (len(self._times) - 1) / (self._times[-1] - self._times[0])


Loop = Callable[[list[int], int], Arrivals]


def compare(
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    target: ModelSpec,
    engines: LoadedModels,
    say: Say,
) -> Comparison:
    """KV reuse against the engine's own greedy loop at the same settings, order alternated."""
    name, theirs = _peer(target, say)
    tokenizer = engines.get(target, say).tokenizer
    pairs: list[tuple[Arrivals, Arrivals]] = []
    for number, prompt in enumerate([prompts[0], *prompts]):
        say(f"prompt {number} of {len(prompts)}" if number else "warming up")
        ids = tokenizer.encode(prompt.text, chat=True)
        before = theirs(ids, max_new_tokens) if number % 2 else None
        ours = _ours(prompt, max_new_tokens, target, engines)
        pairs.append((ours, before or theirs(ids, max_new_tokens)))
    measured = [pair for pair in pairs[1:] if all(len(side.tokens) > 1 for side in pair)]
    ratios = [ours.speed / peer.speed for ours, peer in measured]
    return Comparison(
        name,
        median(ours.speed for ours, _ in measured),
        median(peer.speed for _, peer in measured),
        median(ratios),
        (min(ratios), max(ratios)),
        sum(ours.tokens == peer.tokens for ours, peer in measured),
        len(measured),
    )


def _ours(prompt: Prompt, count: int, target: ModelSpec, engines: LoadedModels) -> Arrivals:
    arrivals = Arrivals()

    def emit(event: Event) -> None:
        if isinstance(event, Step):
            arrivals.add(event.tokens)

    race = Race(Request(prompt.text, count), (STRATEGIES[BASELINE],), target)
    run_race(race, engines, emit, lambda: False)
    return arrivals


def _peer(target: ModelSpec, say: Say) -> tuple[str, Loop]:
    match target.engine, target.precision:
        case "openvino", "fp32":
            return "openvino-genai LLMPipeline", _genai(target, say)
        case "openvino", _:
            raise DerbyError("openvino-genai is compared at fp32 only: use --precision fp32.")
        case "torch", _:
            return "transformers generate()", _generate(target, say)
        case _:
            raise DerbyError(f"There is no peer to compare the {target.engine} engine with.")


def _generate(target: ModelSpec, say: Say) -> Loop:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    device = "cuda" if target.device.startswith("CUDA") else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_files(target.name, say).folder, dtype=kinds[target.precision]
    )
    model.to(device)

    class Streamer(BaseStreamer):
        def __init__(self) -> None:
            self.arrivals = Arrivals()
            self.prompt_seen = False

        def put(self, value: Any) -> None:
            # The prompt itself is streamed first.
            if self.prompt_seen:
                self.arrivals.add(value.tolist())
            self.prompt_seen = True

        def end(self) -> None: ...

    def run(ids: list[int], count: int) -> Arrivals:
        streamer = Streamer()
        model.generate(
            torch.tensor([ids], device=device),
            attention_mask=torch.ones((1, len(ids)), dtype=torch.long, device=device),
            max_new_tokens=count,
            do_sample=False,
            streamer=streamer,
        )
        return streamer.arrivals

    return run


def _genai(target: ModelSpec, say: Say) -> Loop:
    import openvino
    import openvino_genai as genai
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer

    from backend.engines.openvino.engine import EXACT

    files = model_files(target.name, say)
    say("exporting the model as openvino-genai expects it")
    with TemporaryDirectory(prefix="decode-derby-") as name:
        folder = Path(name)
        exported = OVModelForCausalLM.from_pretrained(
            files.folder, export=True, compile=False, load_in_8bit=False
        )
        exported.save_pretrained(folder)
        pair: Any = convert_tokenizer(
            AutoTokenizer.from_pretrained(files.folder), with_detokenizer=True
        )
        for kind, model in zip(("tokenizer", "detokenizer"), pair, strict=True):
            openvino.save_model(model, folder / f"openvino_{kind}.xml")
        pipeline = genai.LLMPipeline(folder, genai.Tokenizer(folder), target.device, EXACT)

    class Streamer(genai.StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.arrivals = Arrivals()

        def write(self, token: Any) -> Any:
            self.arrivals.add([token] if isinstance(token, int) else token)
            return genai.StreamingStatus.RUNNING

        def end(self) -> None: ...

    def run(ids: list[int], count: int) -> Arrivals:
        import numpy as np

        config = genai.GenerationConfig()
        config.max_new_tokens = count
        config.do_sample = False
        config.stop_token_ids = set(files.eos_ids)
        streamer = Streamer()
        pipeline.generate(openvino.Tensor(np.array([ids], dtype=np.int64)), config, streamer)
        return streamer.arrivals

    return run
