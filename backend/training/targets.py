"""The target as training runs it: fast rather than exact, many conversations at once.

All conversations of a batch are equally long at every step, so nothing is padded or masked; those
that are over leave the batch.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.errors import DerbyError
from backend.models.files import ModelFiles, Say, model_files
from backend.text import HfTokenizer
from backend.training.chats import Template, template_of
from backend.training.shards import groups
from backend.types import HiddenStates, ModelSpec

#: bf16 throughout. Threads are not bound to cores, because those of torch, which samples, and of
#: whatever else runs for these hours need theirs too.
FAST = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
    "ENABLE_CPU_PINNING": False,
    "INFERENCE_PRECISION_HINT": "bf16",
    "KV_CACHE_PRECISION": "bf16",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}

#: Conversations are written in int8, weights and activations: 1.4 times as fast, and they need only
#: be plausible. What a draft learns at each of their tokens comes from the unrounded weights.
FASTER = {**FAST, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "64"}


#: Tokens whose features torch computes at once.
AT_ONCE = 32_768


class Target(Protocol):
    """`together` is how many texts are sampled at a time."""

    @property
    def files(self) -> ModelFiles: ...

    @property
    def template(self) -> Template: ...

    @property
    def together(self) -> int: ...

    def forget(self) -> None:
        """Drop all texts and their cache: the next step begins new ones."""
        ...

    def step(self, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> Tensor:
        """Append tokens [B, n] to those texts of the last step that `rows` [B] names; at first to
        empty ones, and `rows` counts them. Gives float32 [B, V], valid until the next step.
        """
        ...

    def features(self, texts: Sequence[NDArray[np.int64]]) -> list[HiddenStates]:
        """HiddenStates [n, D] of each text [n]."""
        ...


def open_target(name: str, say: Say) -> Target:
    """The model `name`, on CUDA if there is a device, or else on OpenVINO. Raises DerbyError if
    there is no such model, or none that a draft can be made of.
    """
    files = model_files(name, say)
    if torch.cuda.is_available():
        return TorchTarget(files, "cuda")
    return OpenVINOTarget(name, files, say)


def _template(files: ModelFiles) -> Template:
    return template_of(HfTokenizer(files.folder, files.eos_ids, files.vocab_size).fast)


class OpenVINOTarget:
    """The project's own IR: fp32 weights computed in bf16 for features, int8 for sampling."""

    together = 8  # so many rows of logits stay in the processor's cache

    def __init__(self, name: str, files: ModelFiles, say: Say) -> None:
        from backend.engines.openvino.export import IR, openvino_ir

        self.files, self.template = files, _template(files)
        self._path = openvino_ir(ModelSpec(name), say) / IR
        self._rounded = openvino_ir(ModelSpec(name, precision="int8"), say) / IR

    def forget(self) -> None:
        self._length = 0
        self._sampling.reset_state()

    def step(self, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> Tensor:
        n = tokens.shape[1]
        _infer(self._sampling, self._length, tokens, rows, [n - 1])
        self._length += n
        return torch.from_numpy(self._sampling.get_output_tensor(0).data)[:, 0]

    def features(self, texts: Sequence[NDArray[np.int64]]) -> list[HiddenStates]:
        return [self._features(tokens) for tokens in texts]

    def _features(self, tokens: NDArray[np.int64]) -> HiddenStates:
        self._reading.reset_state()
        _infer(self._reading, 0, tokens[None], np.zeros(1, np.int32), [])
        return self._reading.get_output_tensor(1).data[0].copy()

    @cached_property
    def _sampling(self) -> Any:
        """The rounded model without its output of features, which sampling does not need."""
        from backend.engines.openvino.core import core

        model = core().read_model(self._rounded)
        model.remove_result(model.get_results()[1])
        return core().compile_model(model, "CPU", FASTER).create_infer_request()

    @cached_property
    def _reading(self) -> Any:
        from backend.engines.openvino.core import core

        return core().compile_model(self._path, "CPU", FAST).create_infer_request()


def _infer(
    request: Any,
    length: int,
    tokens: NDArray[np.int64],
    rows: NDArray[np.int32],
    wanted: Sequence[int],
) -> None:
    """Run a pass over tokens [B, n] behind `length` others, with logits of the `wanted` of the n;
    `rows` as for Target.step.
    """
    batch, n = tokens.shape
    end = length + n
    bias = np.triu(np.full((n, end), np.finfo(np.float32).min, np.float32), length + 1)
    positions = np.arange(length, end)
    request.infer(
        {
            "input_ids": tokens,
            "position_ids": np.ascontiguousarray(np.broadcast_to(positions, (batch, n))),
            "beam_idx": rows,
            "attention_bias": np.ascontiguousarray(np.broadcast_to(bias, (batch, 1, n, end))),
            "rows": np.array(wanted, dtype=np.int64),
        },
        share_inputs=True,
        share_outputs=True,
    )


class TorchTarget:
    """A transformers model on `device`, in bf16 on CUDA and in fp32 elsewhere."""

    together = 4096  # all of a batch: kernels should be few

    def __init__(self, files: ModelFiles, device: str) -> None:
        from transformers import AutoModelForCausalLM

        self.files, self.template = files, _template(files)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                files.folder,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DerbyError(
                f"The model in {str(files.folder)!r} cannot be loaded ({reason}); choose another."
            ) from error
        self._model = model.to(device).eval()
        self.forget()

    def forget(self) -> None:
        from transformers import DynamicCache

        self._cache, self._size = DynamicCache(), 0

    @torch.inference_mode()
    def step(self, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> Tensor:
        device = self._model.device
        if self._size and len(rows) < self._size:
            self._cache.batch_select_indices(torch.from_numpy(rows).long().to(device))
        self._size = len(rows)
        ids = torch.from_numpy(tokens).to(device)
        output = self._model(ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1].float()

    def features(self, texts: Sequence[NDArray[np.int64]]) -> list[HiddenStates]:
        """Reads texts of similar length together. They are padded behind, which changes nothing:
        no token attends to later ones.
        """
        found: dict[int, HiddenStates] = {}
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for places in groups(order, lambda place: len(texts[place]), AT_ONCE):
            some = [texts[place] for place in places]
            for place, states in zip(places, self._read(some), strict=True):
                found[place] = states[: len(texts[place])]
        return [found[place] for place in range(len(texts))]

    @torch.inference_mode()
    def _read(self, texts: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        """[B, n, D] of B texts, padded behind."""
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text
        read = self._model.get_decoder()
        output = read(torch.from_numpy(ids).to(self._model.device), use_cache=False)
        return output.last_hidden_state.float().cpu().numpy()
