"""The prepared IR: torch's logits of chosen rows, codes off the weights' grid; what is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.engines.openvino.core import EXACT
from backend.engines.openvino.export import openvino_ir
from backend.errors import DerbyError
from backend.models.files import IR, model_files
from backend.racing.models import LoadedModels
from backend.types import ModelSpec

pytestmark = pytest.mark.model

HIDDEN = np.finfo(np.float32).min
PROMPT = [1, 4093, 198, 19556, 28, 638, 359, 346, 47, 2, 198, 1, 520, 9531, 198]


def logits_of(precision: str, rows: list[int]) -> NDArray[np.float32]:
    """Logits [len(rows), V] of the prompt, by the bare interface of the built-in model's IR."""
    import openvino as ov

    path = openvino_ir(ModelSpec(precision=precision), print) / IR[0]
    n = len(PROMPT)
    inputs = {
        "input_ids": np.array([PROMPT], dtype=np.int64),
        "position_ids": np.arange(n)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
        "attention_bias": np.triu(np.full((1, 1, n, n), HIDDEN, dtype=np.float32), 1),
        "rows": np.array(rows, dtype=np.int64),
    }
    request = ov.Core().compile_model(path, "CPU", EXACT).create_infer_request()
    return request.infer(inputs)["logits"][0].copy()


def test_logits_of_chosen_rows_equal_torch() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        model_files("built-in", print).folder, dtype=torch.float32
    )
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
    rows = [14, 3, 3, 0]
    np.testing.assert_allclose(logits_of("fp32", rows), expected[rows], atol=1e-3, rtol=0)


@pytest.mark.thorough
def test_int4_of_the_built_in_model_is_exact() -> None:
    """NNCF's int4 rounded the 4-bit weights anew and moved logits by twenty."""
    rows = list(range(len(PROMPT)))
    whole = logits_of("fp32", rows)
    for precision in ("int4", "int4-exact"):
        np.testing.assert_allclose(logits_of(precision, rows), whole, atol=1e-3, rtol=0)


def test_int4_is_under_a_quarter_of_the_size() -> None:
    sizes = [
        (openvino_ir(ModelSpec(precision=p), print) / IR[1]).stat().st_size
        for p in ("fp32", "int4-exact")
    ]
    assert sizes[1] * 4 < sizes[0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (ModelSpec(device="TPU"), r"'TPU'.*CPU"),
        (ModelSpec(precision="fp64"), r"'fp64'.*fp32, int8, int4"),
    ],
)
def test_an_unknown_device_or_precision_is_named_with_the_choices(
    spec: ModelSpec, said: str
) -> None:
    with pytest.raises(DerbyError, match=said):
        LoadedModels().get(spec, print)
