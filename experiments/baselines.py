"""Our columns against loops that are not ours, to show that the baseline is not a weak one.

`peers`: KV reuse against the engine's own greedy loop; of a GGUF file, on our llama.cpp engine or
where OpenVINO runs its codes exactly, KV reuse, lookup and suffix against llama.cpp's own server
with its `ngram-simple` and `ngram-mod`, and a draft model. `assisted`: our drafting columns against
transformers' assisted generation, on torch at fp32. Both sides have the same weights, and the same
draft and K where there are any; both are greedy and timed by the wall from the arrival of the first
block to that of the last one.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import httpx

from backend.errors import DerbyError
from backend.events import Event, Step
from backend.models.builtin import WHEEL_SHA256, built_in_folder
from backend.models.files import Say, gguf_file, model_files
from backend.models.prepared import prepared
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import Column, parse_column
from backend.strategies.registry import BASELINE
from backend.types import ModelSpec, Request
from experiments.experiment import Experiment, Setup
from experiments.llama_server import LlamaServer
from experiments.runs import ratios_of, rounds

if TYPE_CHECKING:
    import torch

#: Of a prompt's token ids, or of its text, the answer.
Loop = Callable[[Sequence[int]], "Answer"]
Answering = Callable[[str], "Answer"]

#: Where assisted generation is compared.
TARGET = ModelSpec(engine="torch", precision="fp32")

#: Settings of both sides: tokens copied after a match and the longest ending looked up; tokens
#: drafted a round.
LOOKUP_K, NGRAM, DRAFT_K = 6, 3, 5

#: Of the draft's matrices, so many weights share one range, which is cut into 2**BITS values.
GROUP, BITS = 64, 3

#: llama.cpp's; bytes of a block of 32 weights in its Q4_1, and of the scales before them.
GGUF_DRAFT, Q4_1_BLOCK, Q4_1_SCALES = "draft.gguf", 20, 4

#: Our precisions as transformers names them.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens that arrived together, when (seconds), and the target's passes that they took: how
    many, and how many token rows these computed; 0 where nobody counts them.
    """

    tokens: tuple[int, ...]
    time: float
    rows: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer, as it arrived. What the first block took is no part of its figures."""

    blocks: tuple[Block, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for block in self.blocks for token in block.tokens)

    @property
    def later(self) -> int:
        """Tokens after the first block's."""
        return sum(len(block.tokens) for block in self.blocks[1:])

    @property
    def passes(self) -> int:
        """The target's forward passes after the one that gave the first block."""
        return sum(block.passes for block in self.blocks[1:])

    @property
    def per_forward(self) -> float | None:
        """Tokens, as of `metrics.Score`: the prefill's pass and tokens are left out."""
        return self.later / self.passes if self.passes else None

    @property
    def rows(self) -> float | None:
        """Token rows of an average pass."""
        rows = sum(block.rows for block in self.blocks[1:])
        return rows / self.passes if rows and self.passes else None

    @property
    def tpot(self) -> float:
        """Seconds per token after the first block."""
        return (self.blocks[-1].time - self.blocks[0].time) / self.later

    def first(self, count: int) -> "Answer":
        """Its first `count` tokens: a last block that holds more is cut, and counts in full."""
        blocks: list[Block] = []
        for block in self.blocks:
            if count > 0:
                cut = block.tokens[:count]
                blocks.append(Block(cut, block.time, block.rows, block.passes))
            count -= len(block.tokens)
        return Answer(tuple(blocks))


@dataclass(frozen=True, slots=True)
class PeerResult:
    """Ours against a peer's loop. ours, theirs: median decode tokens per second; ratio: the median
    of per-prompt ratios, above 1 where we are ahead, with its 95 % interval, and the lowest and
    highest in `spread`; per_forward, rows: medians of tokens and of rows a target forward pass,
    None where nobody counts them; equal: prompts with the same token ids. What either side answered
    in one block counts in `prompts` and `equal` alone.
    """

    peer: str
    ours: float
    theirs: float
    ratio: float
    interval: tuple[float, float] | None
    spread: tuple[float, float]
    per_forward: float | None
    their_per_forward: float | None
    rows: float | None
    their_rows: float | None
    equal: int
    prompts: int


def our_answer(
    prompt: str, column: Column, count: int, target: ModelSpec, models: LoadedModels
) -> Answer:
    """What our column writes. Raises DerbyError if it fails."""
    board = Scoreboard((column,))
    blocks: list[Block] = []

    def emit(event: Event) -> None:
        if isinstance(event, Step):
            blocks.append(Block(tuple(event.tokens), perf_counter(), event.rows, 1))
        board.add(event)

    Race(Request(prompt, count), (column,), target).run(models, emit, lambda: False)
    score = board.scores[0]
    if score.state != "done":
        raise DerbyError(f"{column.label} did not finish: {score.message}")
    return Answer(tuple(blocks))


def generated(model: Any, ids: Sequence[int], count: int, options: Mapping[str, Any]) -> Answer:
    """What `model.generate()` of transformers writes after a prompt's token ids, `count` tokens at
    most, `options` being its keyword arguments. It writes a few more where a block ends behind the
    limit; they are cut.
    """
    import torch

    prompt = torch.tensor([list(ids)], device=model.device)
    arrivals = _Arrivals()
    hook = model.register_forward_pre_hook(arrivals.count, with_kwargs=True)
    try:
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            streamer=arrivals,
            **options,
        )
    finally:
        hook.remove()
    return Answer(tuple(arrivals.blocks[1:])).first(count)  # the prompt is streamed first


class _Arrivals:
    """What `generate()` streams to, each block as soon as it is verified; and a hook in front of
    the target's forward that counts rows.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._rows: list[int] = []  # of every pass since the last block

    def count(self, _module: Any, _args: Any, kwargs: Mapping[str, Any]) -> None:
        self._rows.append(kwargs["input_ids"].shape[1])

    def put(self, value: Any) -> None:
        tokens = tuple(value.flatten().tolist())
        self.blocks.append(Block(tokens, perf_counter(), sum(self._rows), len(self._rows)))
        self._rows.clear()

    def end(self) -> None: ...


def alternate(setup: Setup, ours: Answering, theirs: Answering) -> list[tuple[Answer, Answer]]:
    """Both answers to every prompt, after a discarded warm-up; who begins alternates."""
    texts = [prompt.text for prompt in setup.prompts]
    runs = rounds((ours, theirs), texts, setup.say_prompt, warm_up=2)
    return [(own, other) for own, other in runs]


def measurable(
    what: str, longest_block: int, pairs: Sequence[tuple[Answer, Answer]]
) -> list[tuple[Answer, Answer]]:
    """The pairs that say something of speed, both sides cut to as many tokens.

    Raises DerbyError if there are none.
    """
    level = [
        (ours.first(len(theirs.tokens)), theirs.first(len(ours.tokens))) for ours, theirs in pairs
    ]
    long_enough = [pair for pair in level if all(side.later > 0 for side in pair)]
    if not long_enough:
        raise DerbyError(
            f"{what} answered no prompt in more than one block, and blocks of up to "
            f"{longest_block} tokens leave nothing to measure: raise the number of new tokens."
        )
    return long_enough


def peers(setup: Setup) -> list[PeerResult]:
    """Our columns against loops of others at the same settings."""
    count, target, models = setup.request.max_new_tokens, setup.target, setup.models
    results: list[PeerResult] = []
    for name, spelled, open_loop in _peers_of(target, setup.say):
        answer_ids = open_loop(target, count, setup.say)
        encode, column = models.get(target, setup.say).tokenizer.encode, parse_column(spelled)
        pairs = alternate(
            setup,
            lambda text, column=column: our_answer(text, column, count, target, models),
            lambda text, encode=encode, ids=answer_ids: ids(encode(text, chat=True)),
        )
        results.append(peer_result(name, pairs))
    return results


def _peers_of(target: ModelSpec, say: Say) -> "list[tuple[str, str, Open]]":
    """Name, column of ours, and loop of each. Raises DerbyError where there is none."""
    if target.engine == "llamacpp" or target.precision.endswith("-exact"):
        draft = draft_gguf(target, say)
        theirs = partial(_llama_cpp, speculation="draft-simple", path=draft, n_max=DRAFT_K)
        ours = f"speculative:draft={draft},k={DRAFT_K}"
        return [*LLAMA_CPP, ("llama.cpp, draft-simple", ours, theirs)]
    if target.engine not in OWN_LOOPS:
        raise DerbyError(
            f"The {target.engine} engine has no loop of its own to compare with; "
            f"{' and '.join(OWN_LOOPS)} have one."
        )
    name, open_loop = OWN_LOOPS[target.engine]
    return [(name, BASELINE, open_loop)]


def peer_result(
    peer: str, pairs: Sequence[tuple[Answer, Answer]], longest_block: int = 1
) -> PeerResult:
    """The figures of (ours, theirs) pairs. Raises DerbyError if all answers are too short."""
    ours, theirs = zip(*measurable(peer, longest_block, pairs), strict=True)
    speeds = [peers.tpot / own.tpot for own, peers in zip(ours, theirs, strict=True)]
    # Runs that wrote the same text were of the same prompt.
    ratios = ratios_of(speeds, [answer.tokens for answer in ours])
    return PeerResult(
        peer=peer,
        ours=median(1 / answer.tpot for answer in ours),
        theirs=median(1 / answer.tpot for answer in theirs),
        ratio=ratios.median,
        interval=ratios.interval,
        spread=ratios.spread,
        per_forward=_median(answer.per_forward for answer in ours),
        their_per_forward=_median(answer.per_forward for answer in theirs),
        rows=_median(answer.rows for answer in ours),
        their_rows=_median(answer.rows for answer in theirs),
        equal=sum(own.tokens == peers.tokens for own, peers in pairs),
        prompts=len(pairs),
    )


def _median(values: Iterable[float | None]) -> float | None:
    """None where nobody counted."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _transformers(target: ModelSpec, count: int, say: Say) -> Loop:
    from transformers import AutoModelForCausalLM

    folder = model_files(target.name, say).folder
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[target.precision])
    model.to("cuda" if target.device.startswith("CUDA") else "cpu")
    return lambda ids: generated(model, ids, count, {})


def _openvino_genai(target: ModelSpec, count: int, say: Say) -> Loop:
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
    config.max_new_tokens = count
    config.do_sample = False
    config.stop_token_ids = set(files.eos_ids)

    class Streamer(genai.StreamerBase):
        def __init__(self) -> None:
            super().__init__()
            self.blocks: list[Block] = []

        def write(self, token: Any) -> Any:
            tokens = (token,) if isinstance(token, int) else tuple(token)
            self.blocks.append(Block(tokens, perf_counter()))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None: ...

    def run(ids: Sequence[int]) -> Answer:
        streamer = Streamer()
        pipeline.generate(openvino.Tensor(np.array([ids], dtype=np.int64)), config, streamer)
        return Answer(tuple(streamer.blocks))

    return run


def _llama_cpp(target: ModelSpec, count: int, say: Say, **speculation: Any) -> Loop:
    """llama.cpp's server on the same file. It counts accepted tokens, which tells its passes."""
    server = LlamaServer(gguf_file(target.name, say), **speculation)
    options = {"n_predict": count, "temperature": 0, "cache_prompt": False, "return_tokens": True}

    def run(ids: Sequence[int]) -> Answer:
        asked = {"prompt": list(ids), "stream": True, **options}
        address = f"{server.address}/completion"  # it lasts as long as this function
        blocks, last = list[Block](), dict[str, Any]()
        with httpx.stream("POST", address, json=asked, timeout=600, trust_env=False) as answer:
            for line in filter(None, answer.iter_lines()):
                last = json.loads(line.removeprefix("data: "))
                if last["tokens"]:
                    blocks.append(Block(tuple(last["tokens"]), perf_counter()))
        passes = len(blocks) - 1 - last["timings"].get("draft_n_accepted", 0)
        return Answer((*blocks[:-1], replace(blocks[-1], passes=passes)))

    return run


Open = Callable[[ModelSpec, int, Say], Loop]

#: By engine: what its libraries decode with, and what opens that for a target and a limit.
OWN_LOOPS: dict[str, tuple[str, Open]] = {
    "openvino": ("openvino-genai LLMPipeline", _openvino_genai),
    "torch": ("transformers generate()", _transformers),
}

#: Its loops beside ours.
LLAMA_CPP: list[tuple[str, str, Open]] = [
    ("llama.cpp", BASELINE, _llama_cpp),
    (
        "llama.cpp, ngram-simple",
        f"lookup:k={LOOKUP_K},ngram={NGRAM}",
        partial(_llama_cpp, speculation="ngram-simple", size_n=NGRAM, size_m=LOOKUP_K),
    ),
    (
        "llama.cpp, ngram-mod",
        f"suffix:k={LOOKUP_K}",
        partial(_llama_cpp, speculation="ngram-mod", n_match=NGRAM, n_min=1, n_max=LOOKUP_K),
    ),
]


def assisted(setup: Setup) -> list[PeerResult]:
    """Prompt lookup, then with ours free to verify fewer than K tokens, then a draft model.

    The draft is the built-in model with coarser weights: too large to gain anything over plain
    decoding, but it errs as a draft does.
    """
    from transformers import AutoModelForCausalLM

    say, count, models = setup.say, setup.request.max_new_tokens, setup.models
    # Ours comes first: it also sets the number of torch's threads, for both sides.
    encode = models.get(TARGET, say).tokenizer.encode
    model = AutoModelForCausalLM.from_pretrained(built_in_folder(say), dtype="float32")
    draft = draft_folder(say)
    assistant = AutoModelForCausalLM.from_pretrained(draft, dtype="float32")

    def compare(column: Column, k: int, options: Mapping[str, Any]) -> PeerResult:
        say(f"{column.label} against transformers")
        pairs = alternate(
            setup,
            lambda text: our_answer(text, column, count, TARGET, models),
            lambda text: generated(model, encode(text, chat=True), count, options),
        )
        return peer_result(column.label, pairs, k + 1)

    # With more than one branch a pass would verify more than K tokens.
    lookup = f"lookup:k={LOOKUP_K},ngram={NGRAM},branches=1"
    looked_up = {"prompt_lookup_num_tokens": LOOKUP_K, "max_matching_ngram_size": NGRAM}
    fixed, free = parse_column(lookup), parse_column(f"{lookup},auto=true")
    speculative = parse_column(f"speculative:k={DRAFT_K}").with_settings({"draft": str(draft)})
    return [
        compare(fixed, LOOKUP_K, looked_up),
        compare(free, LOOKUP_K, looked_up),
        compare(speculative, DRAFT_K, assisted_by(assistant, DRAFT_K)),
    ]


def assisted_by(draft: Any, k: int) -> dict[str, Any]:
    """`generate()`'s options for a draft of always `k` tokens, however unsure it is of them.

    The settings are written into the draft's own configuration, because that is where transformers
    looks: given to the target's `generate()` they are accepted and without effect.
    """
    draft.generation_config.num_assistant_tokens = k
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    return {"assistant_model": draft}


def draft_folder(say: Say) -> Path:
    """The built-in model with every matrix of its layers rounded: a Hugging Face folder."""
    recipe = (
        f"assisted draft v1: {BITS} bits in groups of {GROUP}, stored as bf16, of {WHEEL_SHA256}"
    )
    return prepared("assisted-draft", recipe, lambda folder: _build(folder, say), say)


def draft_gguf(target: ModelSpec, say: Say) -> Path:
    """The target's GGUF file with the codes of its Q4_1 layers rounded to six values of sixteen."""
    source = gguf_file(target.name, say)

    def build(folder: Path) -> None:
        from gguf import GGMLQuantizationType, GGUFReader

        say("Making a draft that errs, for the comparison with llama.cpp...")
        shutil.copy(source, folder / GGUF_DRAFT)
        for tensor in GGUFReader(folder / GGUF_DRAFT, "r+").tensors:
            if tensor.name.startswith("blk.") and tensor.tensor_type == GGMLQuantizationType.Q4_1:
                codes = tensor.data.reshape(-1, Q4_1_BLOCK)[:, Q4_1_SCALES:]
                low, high = ((half + 1) // 3 * 3 for half in (codes & 15, codes >> 4))
                codes[:] = low | high << 4

    recipe = f"draft v1 of {source.name}, {source.stat().st_size} bytes"
    return prepared("gguf-draft", recipe, build, say) / GGUF_DRAFT


def _build(folder: Path, say: Say) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = built_in_folder(say)
    say("Making a draft that errs, for the comparison with transformers...")
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        for weights in model.model.layers.parameters():
            if weights.dim() == 2:
                weights.copy_(rounded(weights))
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def rounded(weights: "torch.Tensor") -> "torch.Tensor":
    """Each weight of [O, I] as the nearest of 2**BITS values, evenly spaced from the least to the
    greatest of its GROUP neighbours along I, which GROUP must divide.
    """
    groups = weights.unflatten(1, (-1, GROUP))
    low = groups.amin(2, keepdim=True)
    step = (groups.amax(2, keepdim=True) - low) / (2**BITS - 1)
    codes = ((groups - low) / step.clamp_min(1e-12)).round()
    return (low + codes * step).flatten(1)


PEERS = Experiment(
    "peers", "KV reuse against the engine's own greedy loop or llama.cpp's server", peers
)
ASSISTED = Experiment(
    "assisted",
    "drafting columns against transformers' assisted generation, torch at fp32",
    assisted,
    lambda setup: f"{TARGET}, {setup.request.max_new_tokens} new tokens, greedy",
)
