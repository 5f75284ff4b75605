"""EAGLE-3 (arXiv 2503.01840): a draft of one or a few decoder layers that reads the hidden states
of several of the target's layers; and P-EAGLE (arXiv 2602.01469), which drafts in one pass. It runs
in torch, beside its target and in its precision.
"""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from backend.engines.draft import DraftNetwork
from backend.engines.heads.published import PublishedDraft
from backend.engines.torch.engine import TorchEngine
from backend.engines.torch.growing import GrowingCache
from backend.errors import DerbyError
from backend.types import HiddenStates, Layers, Logits

#: What the authors' files call the first layer, and what it is called here.
RENAMED = {"midlayer.": "layers.0."}

#: Weights that only training needs, or that repeat the map of the vocabulary.
UNUSED = ("t2d", "verifier_norm.", "verifier_lm_head.")

#: Rows that a round's first pass usually feeds.
USUAL = 3


class Eagle3(nn.Module):
    """The network, its parts named as in the published files. Embeddings and output projection
    may be the target's.
    """

    def __init__(self, draft: PublishedDraft, embedding: nn.Module, output: nn.Module) -> None:
        """Raises DerbyError for a family of layers that is not known here."""
        super().__init__()
        layer, self.config = _family(draft)
        size, eps, reads = self.config.hidden_size, self.config.rms_norm_eps, draft.count
        self.layers = nn.ModuleList(
            layer(self.config, i) for i in range(self.config.num_hidden_layers)
        )
        first: Any = self.layers[0]
        first.hidden_norm = _norm(size, eps)
        for name in ("q_proj", "k_proj", "v_proj"):  # they read the token's embedding, too
            usual = getattr(first.self_attn, name)
            wide = nn.Linear(2 * size, usual.out_features, bias=usual.bias is not None)
            setattr(first.self_attn, name, wide)
        self.fc = nn.Linear(reads * size, size, bias=False)
        self.norm = _norm(size, eps)
        self.input_norm = _norm(reads * size, eps) if draft.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(_norm(size, eps) for _ in range(reads * draft.fc_norm))
        self.rotary = _rotary(self.config)
        self.embed_tokens, self.lm_head = embedding, output
        self.block, self.mask = draft.block, draft.mask
        self.mask_hidden = nn.Parameter(torch.zeros(1, 1, reads * size))
        self._normed = draft.norm_before_residual, draft.norm_output

    def fused(self, states: Tensor) -> Tensor:
        """What the target's hidden states [1, n, reads * D] are to the first layer: [1, n, D]."""
        states = self.input_norm(states)
        if len(self.fc_norm):
            parts = states.chunk(len(self.fc_norm), -1)
            pairs = zip(self.fc_norm, parts, strict=True)
            states = torch.cat([norm(part) for norm, part in pairs], -1)
        return self.fc(states)

    def forward(
        self, hidden: Tensor, tokens: Tensor, positions: Tensor, cache: GrowingCache
    ) -> tuple[Tensor, Tensor]:
        """Run n rows behind those in the cache, which takes them: logits [block, V'] of the last
        ones, and what the last one predicts of the target's hidden states, [1, 1, D].

        `hidden` [1, n, D]: of the token before each of `tokens` [1, n].
        """
        before_residual, normed_output = self._normed
        turned = self.rotary(hidden, positions)
        first: Any = self.layers[0]
        seen = first.hidden_norm(hidden)
        x = torch.cat([first.input_layernorm(self.embed_tokens(tokens)), seen], -1)
        given = {"position_embeddings": turned, "past_key_values": cache}
        masks = self._masks(tokens.shape[1], cache.get_seq_length(), hidden)
        attended, _ = first.self_attn(hidden_states=x, attention_mask=masks[0], **given)
        x = (seen if before_residual else hidden) + attended
        x = x + first.mlp(first.post_attention_layernorm(x))
        for layer, mask in zip(self.layers[1:], masks[1:], strict=True):
            x = layer(x, attention_mask=mask, position_ids=positions, **given)
        last = x[:, -self.block :]
        normed = self.norm(last)
        return self.lm_head(normed)[0].float(), (normed if normed_output else last)[:, -1:]

    def _masks(self, n: int, held: int, like: Tensor) -> list[Tensor]:
        """What each layer adds to the scores of n rows behind `held`: [1, 1, n, held + n]."""
        rows = torch.arange(held, held + n, device=like.device)[:, None]
        columns = torch.arange(held + n, device=like.device)[None]
        kinds = getattr(self.config, "layer_types", None) or ["full_attention"] * len(self.layers)
        masks: list[Tensor] = []
        for kind in kinds:
            unseen = columns > rows
            if kind == "sliding_attention":
                unseen = unseen | (columns <= rows - self.config.sliding_window)
            bias = torch.zeros(n, held + n, dtype=like.dtype, device=like.device)
            masks.append(bias.masked_fill_(unseen, torch.finfo(like.dtype).min)[None, None])
        return masks


def _family(draft: PublishedDraft) -> tuple[Callable[[Any, int], nn.Module], Any]:
    """What makes a decoder layer, and its configuration."""
    from transformers import LlamaConfig, Qwen3Config
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    families: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaDecoderLayer, LlamaConfig),
        "qwen3": (Qwen3DecoderLayer, Qwen3Config),
    }
    if draft.family not in families:
        raise DerbyError(
            f"The draft {draft.folder.name} has layers of type {draft.family!r}: EAGLE-3 drafts "
            f"here have those of {' or '.join(families)}."
        )
    layer, configuration = families[draft.family]
    config = configuration(**draft.layer)
    config._attn_implementation = "sdpa"  # noqa: SLF001 (transformers' own way to choose)
    return layer, config


def _rotary(config: Any) -> nn.Module:
    """Both families turn their heads alike."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    return LlamaRotaryEmbedding(config)


def _norm(size: int, eps: float) -> nn.Module:
    return nn.RMSNorm(size, eps)


class Eagle3Draft:
    """A loaded draft; it holds no text. `seconds`: what a pass takes in a round, on average."""

    def __init__(self, draft: PublishedDraft, target: TorchEngine) -> None:
        """Raises DerbyError if the draft's files cannot be read, or are for another target."""
        model = target.model
        config = model.config.get_text_config(decoder=True)
        self.name, self.title = draft.title, f"{draft.title} draft {draft.folder.name}"
        self.layers: Layers = draft.layers(config.num_hidden_layers)
        weights, self.vocabulary = _read(draft, config)
        self.module = _loaded(draft, weights, model, self.vocabulary)
        self.states = len(self.layers) * config.hidden_size
        target.show(self.layers)
        with torch.inference_mode():
            self.unknown = self.module.fused(self.module.mask_hidden)
        self.seconds = 0.0
        self.seconds = self._measured()

    def open(self) -> "Eagle3Network":
        """A network for a new text."""
        return Eagle3Network(self)

    def _measured(self, repeats: int = 20) -> float:
        """Mean seconds of a pass as rounds make them: the first over a few rows, then single
        ones.
        """
        network, states = self.open(), np.zeros((USUAL, self.states), np.float32)
        times: list[tuple[float, float]] = []
        for _ in range(repeats):
            begun = perf_counter()
            network.read(0, [0] * USUAL, states, wanted=True)
            between = perf_counter()
            network.guess(USUAL, 0)
            times.append((between - begun, perf_counter() - between))
            network.rewind(0)
        return sum(median(part) for part in zip(*times[repeats // 2 :], strict=True)) / 2


def _read(draft: PublishedDraft, config: Any) -> tuple[dict[str, Tensor], NDArray[np.int64] | None]:
    """The weights by their names here, and the target's ids of the logits; None: they are the same.
    Raises DerbyError if the files cannot be read, or are for another target.
    """
    weights: dict[str, Tensor] = {}
    files = sorted(draft.folder.glob("*.safetensors"))
    if not files:
        raise DerbyError(
            f"The draft {draft.folder.name} has no safetensors file: convert its weights first, "
            "for pickled ones are never loaded."
        )
    try:
        for path in files:
            weights |= load_file(path)
    except (OSError, SafetensorError) as error:
        raise DerbyError(
            f"The draft {draft.folder.name} cannot be read ({error}): restore its files."
        ) from error
    for old, new in RENAMED.items():
        weights = {name.replace(old, new, 1): value for name, value in weights.items()}
    weights = {name: value for name, value in weights.items() if not name.startswith(UNUSED)}
    offsets = weights.pop("d2t", None)
    states = draft.count * config.hidden_size
    if draft.block == 1:  # nothing is drafted unseen
        weights["mask_hidden"] = torch.zeros(1, 1, states)
    made_for = weights["fc.weight"].shape[1] if "fc.weight" in weights else states
    if made_for != states:
        raise DerbyError(
            f"The draft {draft.folder.name} reads {made_for} numbers of its target's hidden "
            f"states, and this target shows {states}: choose a draft that was trained for it."
        )
    if offsets is None:
        return weights, None
    # Published as the distance of each id to the target's.
    vocabulary = (offsets + torch.arange(len(offsets))).numpy().astype(np.int64)
    if vocabulary[-1] >= config.vocab_size or (np.diff(vocabulary) <= 0).any():
        raise DerbyError(
            f"The draft {draft.folder.name} writes tokens up to {vocabulary.max()}, and this "
            f"target has {config.vocab_size}: choose a draft that was trained for it."
        )
    return weights, vocabulary


def _loaded(
    draft: PublishedDraft,
    weights: dict[str, Tensor],
    model: Any,
    vocabulary: NDArray[np.int64] | None,
) -> Eagle3:
    """The network with these weights; those that it lacks of embeddings and output projection are
    the target's. Raises DerbyError if others are missing, or of another shape.
    """
    embedding: Any = model.get_input_embeddings()
    output: Any = model.get_output_embeddings()
    if (own := weights.pop("embed_tokens.weight", None)) is not None:
        embedding = nn.Embedding.from_pretrained(own)
    if (own := weights.pop("lm_head.weight", None)) is not None:
        output = _projection(own)
    elif vocabulary is not None:
        output = _projection(output.weight[torch.from_numpy(vocabulary).to(output.weight.device)])
    with torch.device("meta"):
        module = Eagle3(draft, nn.Identity(), nn.Identity())
    try:
        found = module.load_state_dict(weights, strict=False, assign=True)
        wrong = [*found.missing_keys, *found.unexpected_keys]
    except RuntimeError as error:
        raise _mismatched(draft, str(error).splitlines()[-1].strip()) from error
    if wrong:
        raise _mismatched(draft, ", ".join(wrong[:3]))
    # In the target's precision, but for the frequencies, which stay float32.
    like = model.get_input_embeddings().weight
    module.rotary, module.embed_tokens, module.lm_head = nn.Identity(), embedding, output
    module.to(like).rotary = _rotary(module.config).to(like.device)
    return module.eval().requires_grad_(requires_grad=False)


def _projection(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def _mismatched(draft: PublishedDraft, what: str) -> DerbyError:
    return DerbyError(
        f"The weights of the draft {draft.folder.name} are not those that its config.json "
        f"describes ({what}): restore its files."
    )


class Eagle3Network(DraftNetwork):
    """A text's cache in an Eagle3Draft: a row stands for a token and the target's hidden states of
    the token before it. Where the draft predicts several tokens in a pass, rows without either
    follow, which are forgotten again.
    """

    def __init__(self, draft: Eagle3Draft) -> None:
        self.name, self.title, self.seconds = draft.name, draft.title, draft.seconds
        self.layers, self.vocabulary = draft.layers, draft.vocabulary
        self._module = draft.module
        self._cache = GrowingCache()
        self._first = self._end = 0  # positions of the cache's first row, and behind its last one
        # In place of the target's hidden states: of the last token, and of those not yet drafted.
        self._state = self._unknown = draft.unknown

    @torch.inference_mode()
    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        if position != self._end:
            self.rewind(0)
            self._first = self._end = position
        like = self._module.fc.weight
        given = torch.from_numpy(np.ascontiguousarray(states))[None].to(like.device, like.dtype)
        logits = self._pass(self._module.fused(given), tokens)
        return logits if wanted else logits[:0]

    @torch.inference_mode()
    def guess(self, position: int, token: int) -> Logits:
        return self._pass(self._state, [token])

    def _pass(self, hidden: Tensor, tokens: Sequence[int]) -> Logits:
        module, more, end = self._module, self._module.block - 1, self._end + len(tokens)
        ids = torch.tensor([[*tokens, *[module.mask] * more]], device=hidden.device)
        hidden = torch.cat([hidden, self._unknown.expand(1, more, -1)], 1)
        positions = torch.arange(self._end, end + more, device=hidden.device)[None]
        logits, predicted = module(hidden, ids, positions, self._cache)
        self._state = self._unknown if more else predicted
        self._end = end
        self._cut()
        return logits.cpu().numpy()

    def rewind(self, length: int) -> int:
        self._end = min(self._end, max(length, self._first))
        self._cut()
        return length

    def _cut(self) -> None:
        for layer in self._cache.rows.values():
            layer.length = self._end - self._first

    def close(self) -> None:
        self._cache = GrowingCache()


def open_eagle3(draft: PublishedDraft, target: Any) -> Eagle3Draft:
    """The draft, loaded beside its target. Raises DerbyError if it cannot be."""
    if not isinstance(target, TorchEngine):
        raise DerbyError(
            f"An EAGLE-3 draft reads hidden states of several layers, which {target.spec} does not "
            "show: choose the torch engine."
        )
    return Eagle3Draft(draft, target)
