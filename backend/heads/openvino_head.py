"""The trained head on OpenVINO: int8 weights, a window of fixed size, and so fixed shapes."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.openvino_engine import core
from backend.heads.base import Floats, Head, HeadPass
from backend.heads.file import HeadFile
from backend.heads.shape import HeadShape
from backend.models import Say, model_files
from backend.prepared import prepared
from backend.types import PREFILL_CHUNK, ModelSpec

IR = "head.xml"

#: Raise it whenever the code below writes something else.
RECIPE = "head v2"

#: With the plugin's default, bf16, a step takes a quarter longer.
SETTINGS = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}

ORDER = ("features", "tokens", "positions", "keys", "values", "bias")


def open_openvino_head(file: HeadFile, target: ModelSpec, say: Say) -> "OpenVINOHead":
    """The head of `target`, compiled for the CPU; converted first if need be."""
    model = core().read_model(head_ir(file, target, say) / IR)
    several = core().compile_model(model, "CPU", SETTINGS)
    # A draft step is so short that working out shapes would take a third of it.
    shapes = {name: model.input(name).get_partial_shape() for name in ORDER}
    for shape in shapes.values():
        for axis in range(len(shape)):
            if shape[axis].is_dynamic:
                shape[axis] = 1
    shapes["bias"][1] = file.shape.window + 1
    model.reshape(shapes)
    return OpenVINOHead(
        file.shape, file.tokens, core().compile_model(model, "CPU", SETTINGS), several
    )


def head_ir(file: HeadFile, target: ModelSpec, say: Say) -> Path:
    """The folder with the head's IR, made if need be."""
    files = model_files(target.name, say)

    def build(folder: Path) -> None:
        say("Converting the trained draft to OpenVINO...")
        import openvino as ov

        ov.save_model(_converted(file, target, say), folder / IR, compress_to_fp16=False)

    key = f"{file.digest} {files.fingerprint}"
    return prepared(f"head-{file.digest[:16]}", f"{RECIPE} {key}", build)


def _converted(file: HeadFile, target: ModelSpec, say: Say) -> Any:
    import nncf
    import openvino as ov
    import torch

    from backend.heads.torch_weights import torch_head

    head = torch_head(file, target, say).eval()
    shape = file.shape
    cache = torch.zeros(shape.layers, shape.kv_heads, shape.window, shape.head_dim)
    example = {
        "features": torch.zeros(2, shape.hidden),
        "tokens": torch.zeros(2, dtype=torch.int64),
        "positions": torch.zeros(2, dtype=torch.int64),
        "keys": cache,
        "values": cache,
        "bias": torch.zeros(2, shape.window + 2),
    }
    shapes = {name: list(value.shape) for name, value in example.items()}
    for name in ("features", "tokens", "positions", "bias"):
        shapes[name][0] = -1
    shapes["bias"][1] = -1
    model = ov.convert_model(
        head,
        example_input=example,
        input=[(name, ov.PartialShape(shapes[name])) for name in ORDER],
    )
    # Its progress bars would end up in somebody's pipe.
    with redirect_stdout(sys.stderr):
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


class OpenVINOHead:
    """Two infer requests, for one row and for several, serve all columns: they hold nothing between
    passes.
    """

    def __init__(
        self, shape: HeadShape, vocabulary: NDArray[np.int64], single: Any, several: Any
    ) -> None:
        self.shape = shape
        self.vocabulary = vocabulary
        self._single = single.create_infer_request()
        self._several = several.create_infer_request()
        self.seconds = step_seconds(self)

    def run(
        self,
        features: Floats,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: Floats,
        values: Floats,
        bias: Floats,
    ) -> HeadPass:
        inputs = (features, tokens, positions, keys, values, bias)
        named = dict(zip(ORDER, inputs, strict=True))
        request = self._single if len(tokens) == 1 else self._several
        request.infer(named, share_inputs=True, share_outputs=True)
        # The output tensors are overwritten by the next pass.
        logits, feature, k, v = (request.get_output_tensor(i).data.copy() for i in range(4))
        return HeadPass(logits[0], feature[0], k, v)


def step_seconds(head: Head, repeats: int = 40) -> float:
    """Median seconds of a pass over one row, after as many rows as a round may feed were shown."""
    shape = head.shape
    cache = np.zeros((shape.layers, shape.kv_heads, shape.window, shape.head_dim), np.float32)
    times: list[float] = []
    for rows in (*range(1, 17), PREFILL_CHUNK, *[1] * repeats):
        features = np.zeros((rows, shape.hidden), np.float32)
        ids = np.zeros(rows, np.int64)
        bias = np.zeros((rows, shape.window + rows), np.float32)
        start = perf_counter()
        head.run(features, ids, ids, cache, cache, bias)
        times.append(perf_counter() - start)
    return median(times[-repeats:])
