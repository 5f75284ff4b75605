"""An EAGLE-3 draft: its files, as its authors or `speculators` publish them, and its network."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from backend.engines.draft import DraftNetwork
from backend.errors import DerbyError
from backend.types import HiddenStates, Layers, Logits

CONFIG = "config.json"

#: The families of decoder layers that run here, whose heads turn alike.
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaDecoderLayer, LlamaConfig),
    "qwen3": (Qwen3DecoderLayer, Qwen3Config),
}

#: What a pass takes, before rounds show it.
SECONDS = 2e-3

#: Weights that only training needs, or that repeat the map of the vocabulary.
UNUSED = ("t2d", "mask_hidden", "verifier_norm.", "verifier_lm_head.")


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """`layer`: the configuration of its decoder layers. `reads`: layers of the target whose hidden
    states it reads; (): the usual ones. `flags`: what `speculators` states of its norms.
    """

    folder: Path
    layer: Mapping[str, Any]
    reads: Layers
    flags: Mapping[str, Any]

    def layers(self, count: int) -> Layers:
        """Those that it reads of a target with so many. Raises DerbyError if it has too few."""
        reads = self.reads or tuple(sorted((2, count // 2, count - 3)))
        if not 0 <= min(reads) <= max(reads) < count:
            raise self.unfit(f"layers {reads} of {count}")
        return reads

    def unfit(self, reason: str) -> DerbyError:
        """The refusal of a draft that was made for another target, or is damaged."""
        return unfit(self.folder, reason)

    def weights(self) -> dict[str, Tensor]:
        """Those of its files by their names here. Raises DerbyError if they cannot be read."""
        weights: dict[str, Tensor] = {}
        try:
            for path in sorted(self.folder.glob("*.safetensors")):
                with safe_open(path, "pt") as file:
                    for name in file.keys():  # noqa: SIM118 (it is no mapping)
                        if not name.startswith(UNUSED):
                            # Its authors call the first layer otherwise.
                            ours = name.replace("midlayer.", "layers.0.", 1)
                            weights[ours] = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise self.unfit(str(error)) from error
        return weights


def unfit(folder: Path, reason: str) -> DerbyError:
    """The refusal of a draft that cannot be used."""
    return DerbyError(
        f"{folder.name} is no EAGLE-3 draft for this model ({reason}): choose one that was trained "
        "for it."
    )


def read_draft(folder: Path) -> DraftFiles:
    """What the folder holds. Raises DerbyError if that is no EAGLE-3 draft that runs here."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    names = " ".join(map(str, config.get("architectures") or ()))
    kind = config.get("speculators_model_type") or ("eagle3" if "eagle3" in names.lower() else "")
    layer = config.get("transformer_layer_config", config)
    family = layer.get("model_type", "llama")
    others = set(layer.get("layer_types") or ()) - {"full_attention"}
    if kind != "eagle3" or family not in FAMILIES or others:
        raise unfit(folder, f"{kind or names or 'a model'}, {family}")
    own = config.get("eagle_config") or {}
    key = "eagle_aux_hidden_state_layer_ids"
    return DraftFiles(folder, layer, tuple(config.get(key) or own.get(key) or ()), config)


class Eagle3(nn.Module):
    """The network, its parts named as in the published files. A row is a token and the target's
    hidden states of the token before it; of a guess, what the network itself predicted.
    """

    def __init__(self, draft: DraftFiles, reads: int) -> None:
        """`reads`: how many of the target's layers it reads."""
        super().__init__()
        family, configuration = FAMILIES[draft.layer.get("model_type", "llama")]
        self.config = configuration(**draft.layer)
        self.config._attn_implementation = "sdpa"  # noqa: SLF001 (transformers' own way to choose)
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.layers = nn.ModuleList(
            family(self.config, i) for i in range(self.config.num_hidden_layers)
        )
        first: Any = self.layers[0]
        first.hidden_norm = nn.RMSNorm(size, eps)
        for name in ("q_proj", "k_proj", "v_proj"):  # they read the token's embedding, too
            usual = getattr(first.self_attn, name)
            wide = nn.Linear(2 * size, usual.out_features, bias=usual.bias is not None)
            setattr(first.self_attn, name, wide)
        self.fc = nn.Linear(reads * size, size, bias=False)
        self.norm = nn.RMSNorm(size, eps)
        flag = draft.flags.get
        before = flag("norm_before_fc")
        self.input_norm = nn.RMSNorm(reads * size, eps) if before else nn.Identity()
        self.fc_norm = nn.ModuleList(
            nn.RMSNorm(size, eps) for _ in range(reads if flag("fc_norm") else 0)
        )
        self._normed = bool(flag("norm_before_residual")), bool(flag("norm_output"))

    def placed(self, embedding: nn.Module, output: nn.Module, like: Tensor) -> None:
        """Be ready to draft with these parts on the device and in the precision of `like`. Rotary
        frequencies stay float32.
        """
        self.to(like).eval().requires_grad_(requires_grad=False)
        self.embed_tokens, self.lm_head = embedding, output
        self.rotary = LlamaRotaryEmbedding(self.config).to(like.device)

    def fused(self, states: Tensor) -> Tensor:
        """What the target's hidden states [1, n, reads * D] are to the first layer: [1, n, D]."""
        states = self.input_norm(states)
        if len(self.fc_norm):
            pairs = zip(self.fc_norm, states.chunk(len(self.fc_norm), -1), strict=True)
            states = torch.cat([norm(part) for norm, part in pairs], -1)
        return self.fc(states)

    def forward(
        self, hidden: Tensor, tokens: Tensor, start: int, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """Run n rows, the first at position `start`, behind those in the cache, which takes them:
        logits [1, V'] behind the last, and what stands for its hidden states in a guess, [1, 1, D].

        `hidden` [1, n, D]: of the token before each of `tokens` [1, n].
        """
        n, cached = tokens.shape[1], cache.get_seq_length()
        positions = torch.arange(start, start + n, device=hidden.device)[None]
        mask = torch.full((n, cached + n), torch.finfo(hidden.dtype).min).triu(cached + 1)
        inputs: dict[str, Any] = {
            "attention_mask": mask[None, None].to(hidden) if n > 1 else None,
            "position_embeddings": self.rotary(hidden, positions),
            "past_key_values": cache,
        }
        before_residual, normed_output = self._normed
        first: Any = self.layers[0]
        seen = first.hidden_norm(hidden)
        x = torch.cat([first.input_layernorm(self.embed_tokens(tokens)), seen], -1)
        attended, _ = first.self_attn(hidden_states=x, **inputs)
        x = (seen if before_residual else hidden) + attended
        x = x + first.mlp(first.post_attention_layernorm(x))
        for layer in self.layers[1:]:
            x = layer(x, position_ids=positions, **inputs)
        last = x[:, -1:]
        normed = self.norm(last)
        return self.lm_head(normed)[0].float(), normed if normed_output else last


class LoadedDraft:
    """A draft beside its target; it holds no text."""

    def __init__(self, folder: Path, model: Any) -> None:
        """`model`: the target's transformers model, whose embeddings and output projection stand in
        where the draft lacks them. Raises DerbyError if the draft is for another.
        """
        draft, config = read_draft(folder), model.config.get_text_config(decoder=True)
        self.reads, weights = draft.layers(config.num_hidden_layers), draft.weights()
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
        like, self.states = embedding.weight, len(self.reads) * config.hidden_size
        self.vocabulary = None
        if (offsets := weights.pop("d2t", None)) is not None:  # each id's distance to the target's
            self.vocabulary = (offsets + torch.arange(len(offsets))).numpy().astype(np.int64)
            if self.vocabulary.max() >= config.vocab_size or (np.diff(self.vocabulary) <= 0).any():
                raise draft.unfit(f"token {self.vocabulary.max()} of {config.vocab_size}")
        if (own := weights.pop("embed_tokens.weight", None)) is not None:
            if len(own) < len(like):
                raise draft.unfit(f"{len(own)} tokens of {len(like)}")
            embedding = nn.Embedding.from_pretrained(own).to(like)
        own = weights.pop("lm_head.weight", None)
        if own is None and self.vocabulary is not None:
            own = output.weight[torch.from_numpy(self.vocabulary).to(like.device)]
        if own is not None:
            output = nn.Linear(own.shape[1], own.shape[0], bias=False, device="meta")
            output.weight = nn.Parameter(own.to(like), requires_grad=False)
        with torch.device("meta"):
            self.module = Eagle3(draft, len(self.reads))
        made_for = weights["fc.weight"].shape[1] if "fc.weight" in weights else self.states
        if made_for != self.states:
            raise draft.unfit(f"{made_for} hidden numbers of {self.states}")
        try:
            keys = self.module.load_state_dict(weights, strict=False, assign=True)
            wrong = [*keys.missing_keys, *keys.unexpected_keys]
        except RuntimeError as error:
            wrong = [str(error).splitlines()[-1].strip()]
        if wrong:
            raise draft.unfit(", ".join(wrong[:3]))
        self.module.placed(embedding, output, like)
        self.device, self.dtype = like.device, like.dtype

    def open(self) -> "Eagle3Network":
        """A network for a new text."""
        return Eagle3Network(self)


class Eagle3Network(DraftNetwork):
    """A text's cache in a LoadedDraft."""

    name = "EAGLE-3"

    def __init__(self, draft: LoadedDraft) -> None:
        self.title, self.seconds = "EAGLE-3 draft", SECONDS
        self.layers, self.vocabulary = draft.reads, draft.vocabulary
        self._draft, self._cache = draft, DynamicCache()
        self._first = self._end = 0  # positions of the cache's first row, and behind its last one
        self._state = torch.zeros(0)  # in place of the target's hidden states of the last token

    @torch.inference_mode()
    def read(
        self, position: int, tokens: Sequence[int], states: HiddenStates, *, wanted: bool
    ) -> Logits:
        if position != self._end:  # what lies between was never shown
            self._cache, self._first, self._end = DynamicCache(), position, position
        draft = self._draft
        hidden = torch.from_numpy(np.ascontiguousarray(states))[None].to(draft.device, draft.dtype)
        logits = self._pass(draft.module.fused(hidden), tokens)
        return logits if wanted else logits[:0]

    @torch.inference_mode()
    def guess(self, position: int, token: int) -> Logits:
        return self._pass(self._state, [token])

    def _pass(self, hidden: Tensor, tokens: Sequence[int]) -> Logits:
        ids = torch.tensor([tokens], device=hidden.device)
        logits, self._state = self._draft.module(hidden, ids, self._end, self._cache)
        self._end += len(tokens)
        return logits.cpu().numpy()

    def rewind(self, length: int) -> None:
        self._end = min(self._end, max(length, self._first))
        if self._end == self._first:
            self._cache = DynamicCache()
        else:
            self._cache.crop(self._end - self._first)

    def close(self) -> None:
        self._cache = DynamicCache()
