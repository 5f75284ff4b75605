"""python -m experiments peers: KV reuse against loops that are not ours, to show that the baseline
is not a weak one.

On OpenVINO the peer is openvino-genai's LLMPipeline, on torch transformers' generate(), with a
compiled static cache on CUDA. Both sides have the same weights, are greedy, and are timed by the
wall from the arrival of the first token to that of the last one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from backend.errors import DerbyError
from backend.events import Event, Step
from backend.models.files import Say, model_files
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.intervals import median_ratio
from backend.strategies.column import parse_column
from backend.strategies.registry import BASELINE
from backend.types import ModelSpec, Request
from experiments.experiment import Experiment, Setup

#: Our precisions as transformers names them.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer: its tokens, and when each arrived, in seconds."""

    tokens: tuple[int, ...]
    times: tuple[float, ...]

    def first(self, count: int) -> "Answer":
        return Answer(self.tokens[:count], self.times[:count])

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


@dataclass(frozen=True, slots=True)
class PeerResult:
    """Ours against a peer's loop. ours, theirs: median decode tokens per second; ratio: the median
    of per-prompt ratios, above 1 where we are ahead, with its 95 % interval, and the lowest and
    highest in `spread`; equal: prompts with the same token ids.
    """

    peer: str
    ours: float
    theirs: float
    ratio: float
    interval: tuple[float, float] | None
    spread: tuple[float, float]
    equal: int
    prompts: int


#: The answer to a prompt's token ids.
Loop = Callable[[Sequence[int]], Answer]


class Arrivals:
    """What a streamer is given, token by token, with times."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []

    def add(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.times += [perf_counter()] * len(tokens)

    @property
    def answer(self) -> Answer:
        return Answer(tuple(self.tokens), tuple(self.times))


def our_answer(prompt: str, count: int, target: ModelSpec, models: LoadedModels) -> Answer:
    """What KV reuse writes."""
    arrivals = Arrivals()

    def emit(event: Event) -> None:
        if isinstance(event, Step):
            arrivals.add(event.tokens)

    Race(Request(prompt, count), (parse_column(BASELINE),), target).run(models, emit, lambda: False)
    return arrivals.answer


def transformers_loop(target: ModelSpec, count: int, say: Say) -> Loop:
    import torch
    from transformers import AutoModelForCausalLM

    cuda = target.device.startswith("CUDA")
    folder = model_files(target.name, say).folder
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[target.precision])
    model.to("cuda" if cuda else "cpu").eval()
    # With a static cache, transformers compiles by itself on CUDA.
    options = {"cache_implementation": "static"} if cuda else {}

    class Streamer(Arrivals):
        def put(self, value: Any) -> None:
            self.add(value.flatten().tolist())

        def end(self) -> None: ...

    def run(ids: Sequence[int]) -> Answer:
        streamer, prompt = Streamer(), torch.tensor([list(ids)], device=model.device)
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            streamer=streamer,
            **options,
        )
        written = streamer.answer  # the prompt is streamed first
        return Answer(written.tokens[len(ids) :], written.times[len(ids) :])

    return run


def openvino_genai_loop(target: ModelSpec, count: int, say: Say) -> Loop:
    if target.precision != "fp32":
        raise DerbyError("openvino-genai is compared at fp32 only: use --precision fp32.")
    import numpy as np
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
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample = count, False
    config.stop_token_ids = set(files.eos_ids)

    class Streamer(genai.StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.arrivals = Arrivals()

        def write(self, token: Any) -> Any:
            self.arrivals.add([token] if isinstance(token, int) else list(token))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None: ...

    def run(ids: Sequence[int]) -> Answer:
        streamer = Streamer()
        pipeline.generate(openvino.Tensor(np.array([ids], dtype=np.int64)), config, streamer)
        return streamer.arrivals.answer

    return run


PEERS = {
    "openvino": ("openvino-genai LLMPipeline", openvino_genai_loop),
    "torch": ("transformers generate()", transformers_loop),
}


def peers(setup: Setup) -> list[PeerResult]:
    """Both sides on every prompt, in turns. Raises DerbyError if the engine has no peer."""
    target, count, models = setup.target, setup.request.max_new_tokens, setup.models
    if target.engine not in PEERS:
        raise DerbyError(
            f"The {target.engine} engine has no loop of its own to compare with: choose "
            f"{' or '.join(PEERS)}."
        )
    name, open_loop = PEERS[target.engine]
    loop, encode = (
        open_loop(target, count, setup.say),
        models.get(target, setup.say).tokenizer.encode,
    )

    def ours(text: str) -> Answer:
        return our_answer(text, count, target, models)

    def theirs(text: str) -> Answer:
        return loop(encode(text, chat=True))

    pairs = setup.in_turns((ours, theirs))
    return [result_of(name, pairs)]


def result_of(peer: str, pairs: Sequence[Sequence[Answer]]) -> PeerResult:
    """The figures of (ours, theirs) pairs, each over as many tokens as both have. Raises DerbyError
    if all answers are too short.
    """
    level = [(a.first(len(b.tokens)), b.first(len(a.tokens))) for a, b in pairs]
    timed = [(a, b) for a, b in level if len(a.tokens) > 1]
    if not timed:
        raise DerbyError(f"{peer} wrote single tokens alone: choose other prompts.")
    ratios = [b.tpot / a.tpot for a, b in timed]
    found = median_ratio(ratios, list(range(len(ratios))))
    return PeerResult(
        peer=peer,
        ours=median(1 / a.tpot for a, _ in timed),
        theirs=median(1 / b.tpot for _, b in timed),
        ratio=found.value,
        interval=found.interval,
        spread=(min(ratios), max(ratios)),
        equal=sum(a.tokens == b.tokens for a, b in pairs),
        prompts=len(pairs),
    )


PEERS_EXPERIMENT = Experiment("peers", "KV reuse against the engine's own greedy loop.", peers)
