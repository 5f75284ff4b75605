"""The trained head on OpenVINO: int8 weights, a window of fixed size, and so fixed shapes."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.heads.draft import HIDDEN, Floats, HeadPass, HostRing, step_seconds
from backend.engines.heads.file import HeadFile, HeadShape
from backend.engines.openvino.compress import silent_nncf
from backend.engines.openvino.conversion import traced_once
from backend.engines.openvino.core import core
from backend.models.files import Say, model_files
from backend.models.prepared import prepared, versions
from backend.types import ModelSpec

IR = "head.xml"

#: Raise it whenever the code below writes something else.
RECIPE = "head v3"

#: With the plugin's default, bf16, a step takes a quarter longer.
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}

#: Rows of the passes whose shapes are fixed: what a round commits is rarely more than the last.
FIXED = (1, 4, 8)

ORDER = ("features", "tokens", "positions", "keys", "values", "bias")


def open_openvino_head(file: HeadFile, target: ModelSpec, say: Say) -> "OpenVINOHead":
    """The head of `target`, compiled for the CPU; converted first if need be."""
    model = core().read_model(head_ir(file, target, say) / IR)
    # A draft step is so short that working out shapes would take a third of it.
    fixed = {rows: _fixed(model, rows, file.shape.slots) for rows in FIXED}
    return OpenVINOHead(
        file.shape, file.tokens, fixed, core().compile_model(model, "CPU", SETTINGS)
    )


def _fixed(model: Any, rows: int, slots: int) -> Any:
    """The model compiled for so many rows and no others."""
    shapes = {name: model.input(name).get_partial_shape() for name in ORDER}
    for name in ("features", "tokens", "positions", "bias"):
        shapes[name][0] = rows
    shapes["bias"][1] = slots + rows
    fixed = model.clone()
    fixed.reshape(shapes)
    return core().compile_model(fixed, "CPU", SETTINGS)


def head_ir(file: HeadFile, target: ModelSpec, say: Say) -> Path:
    """The folder with the head's IR, made if need be."""
    files = model_files(target.name, say)

    def build(folder: Path) -> None:
        say("Converting the draft...")
        import openvino as ov

        ov.save_model(_converted(file, target, say), folder / IR, compress_to_fp16=False)

    made_by = versions("torch", "openvino", "nncf")
    key = f"{RECIPE} {file.digest} {files.fingerprint} by {made_by}"
    return prepared(f"draft-{file.digest[:16]}", key, build, say)


def _converted(file: HeadFile, target: ModelSpec, say: Say) -> Any:
    import openvino as ov
    import torch

    from backend.engines.heads.network import torch_head

    head = torch_head(file, target, say).eval()
    shape = file.shape
    cache = torch.zeros(shape.layers, shape.kv_heads, shape.slots, shape.head_dim)
    example = {
        "features": torch.zeros(2, shape.hidden),
        "tokens": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(2, dtype=torch.int64),
        "keys": cache,
        "values": cache,
        "bias": torch.zeros(2, shape.slots + 2),
    }
    shapes = {name: list(value.shape) for name, value in example.items()}
    for name in ("features", "tokens", "positions", "bias"):
        shapes[name][0] = -1
    shapes["bias"][1] = -1
    with traced_once(), warnings.catch_warnings():
        # The converter traces the module in a way that torch advises against.
        warnings.simplefilter("ignore", DeprecationWarning)
        model = ov.convert_model(
            head,
            example_input=example,
            input=[(name, ov.PartialShape(shapes[name])) for name in ORDER],
        )
    with silent_nncf() as nncf:
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


class OpenVINOHead:
    """A few infer requests, each for so many rows and one for more, serve all columns: they hold
    nothing between passes.
    """

    def __init__(
        self,
        shape: HeadShape,
        vocabulary: NDArray[np.int64],
        fixed: Mapping[int, Any],
        other: Any,
    ) -> None:
        """`fixed`: the head compiled for so many rows; `other`: for any number."""
        self.shape = shape
        self.vocabulary = vocabulary
        self._fixed = {rows: model.create_infer_request() for rows, model in fixed.items()}
        self._other = other.create_infer_request()
        self.seconds = step_seconds(self)

    def open(self) -> HostRing:
        return HostRing(self.shape, self.run)

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: Floats,
        values: Floats,
        bias: Floats,
    ) -> HeadPass:
        """Run n rows behind P cached ones; see TorchHead.forward for the shapes."""
        inputs = (features, tokens, positions, keys, values, bias)
        n = len(tokens)
        rows = next((rows for rows in sorted(self._fixed) if rows >= n), n)
        if rows > n:
            return self._padded(inputs, n, rows - n)
        request = self._fixed.get(n, self._other)
        request.infer(dict(zip(ORDER, inputs, strict=True)), share_inputs=True, share_outputs=True)
        # The output tensors are overwritten by the next pass.
        logits, feature, k, v = (request.get_output_tensor(i).data.copy() for i in range(4))
        return HeadPass(logits, feature, k, v)

    def _padded(self, inputs: tuple[NDArray[Any], ...], n: int, more: int) -> HeadPass:
        """Put `more` rows that see nothing but themselves in front."""
        features, tokens, positions, keys, values, bias = inputs
        slots = self.shape.slots
        padded = np.full((n + more, slots + n + more), HIDDEN)
        np.fill_diagonal(padded[:, slots:], 0)
        padded[more:, :slots] = bias[:, :slots]
        padded[more:, slots + more :] = bias[:, slots:]
        front = ((more, 0),)
        done = self.run(
            np.pad(features, (*front, (0, 0))),
            np.pad(tokens, front),
            np.pad(positions, front),
            keys,
            values,
            padded,
        )
        return done._replace(keys=done.keys[:, :, more:], values=done.values[:, :, more:])
