"""The prepared IR: torch's logits, any attention mask, chosen rows; codes off the weights' grid."""

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.engines.openvino.export import IR, openvino_ir
from backend.errors import DerbyError
from backend.models.files import model_files
from backend.types import ModelSpec

HIDDEN = np.finfo(np.float32).min
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


class Runner:
    """One cache of the built-in IR, driven through its bare interface."""

    def __init__(self, precision: str) -> None:
        import openvino as ov

        path = openvino_ir(ModelSpec(precision=precision), print) / IR
        self.request = ov.Core().compile_model(path, "CPU", EXACT).create_infer_request()

    def __call__(
        self,
        tokens: list[int],
        positions: list[int],
        bias: NDArray[np.float32],
        rows: list[int],
    ) -> NDArray[np.float32]:
        """Logits [len(rows), V] of these new tokens under `bias` [n, P + n]."""
        inputs = {
            "input_ids": np.array([tokens], dtype=np.int64),
            "position_ids": np.array([positions], dtype=np.int64),
            "beam_idx": np.zeros(1, dtype=np.int32),
            "attention_bias": bias[None, None],
            "rows": np.array(rows, dtype=np.int64),
        }
        return self.request.infer(inputs)["logits"][0].copy()

    def prefill(self, tokens: list[int], rows: list[int]) -> NDArray[np.float32]:
        self.request.reset_state()
        return self(tokens, list(range(len(tokens))), causal(0, len(tokens)), rows)


def causal(past: int, n: int) -> NDArray[np.float32]:
    return np.triu(np.full((n, past + n), HIDDEN, dtype=np.float32), past + 1)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner("fp32")


PROMPT = [1, 4093, 198, 19556, 28, 638, 359, 346, 47, 2, 198, 1, 520, 9531, 198]


@pytest.mark.model
class TestIr:
    def test_logits_of_chosen_rows_equal_torch(self, runner: Runner) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            model_files("built-in", print).folder, dtype=torch.float32
        )
        with torch.inference_mode():
            expected = model(torch.tensor([PROMPT])).logits[0].numpy()
        rows = [14, 3, 3, 0]
        np.testing.assert_allclose(runner.prefill(PROMPT, rows), expected[rows], atol=1e-3, rtol=0)

    def test_no_rows_cost_no_logits_but_fill_the_cache(self, runner: Runner) -> None:
        whole = runner.prefill(PROMPT, [14])
        assert runner.prefill(PROMPT[:-1], []).shape == (0, 49152)
        last = runner(PROMPT[-1:], [14], causal(14, 1), [0])
        np.testing.assert_allclose(last, whole, atol=5e-4, rtol=0)

    def test_masked_rows_are_as_if_never_seen(self, runner: Runner) -> None:
        """A tree of four follows the prompt; one branch is kept, the other stays as a hole."""
        start, kept, other = len(PROMPT), [504, 1234], [5000, 6000]
        clean = runner.prefill([*PROMPT, *kept, 777], [15, 16, 17])

        runner.prefill(PROMPT, [])
        tree = np.full((4, start + 4), HIDDEN, dtype=np.float32)
        tree[:, :start] = 0
        for row, sees in enumerate([(0,), (1,), (0, 2), (1, 3)]):
            tree[row, [start + i for i in sees]] = 0
        tokens = [other[0], kept[0], other[1], kept[1]]
        positions = [start, start, start + 1, start + 1]
        branches = runner(tokens, positions, tree, [1, 3])
        np.testing.assert_allclose(branches, clean[:2], atol=5e-4, rtol=0)

        after = np.zeros((1, start + 5), dtype=np.float32)
        after[:, [start, start + 2]] = HIDDEN
        last = runner([777], [start + 2], after, [0])
        np.testing.assert_allclose(last, clean[2:], atol=5e-4, rtol=0)

    def test_an_unknown_precision_is_refused(self) -> None:
        with pytest.raises(DerbyError, match=r"fp32, int8, int4, .*, not 'fp8'"):
            openvino_ir(ModelSpec(precision="fp8"), print)

    @pytest.mark.parametrize("precision", ["int4", "int4-exact"])
    def test_int4_of_the_built_in_model_is_exact(self, runner: Runner, precision: str) -> None:
        """NNCF's int4 rounded the 4-bit weights anew and moved logits by twenty."""
        rows = list(range(len(PROMPT)))
        small = Runner(precision).prefill(PROMPT, rows)
        np.testing.assert_allclose(small, runner.prefill(PROMPT, rows), atol=1e-3, rtol=0)

    def test_int4_is_under_a_quarter_of_the_size(self) -> None:
        sizes = [
            (openvino_ir(ModelSpec(precision=p), print) / IR).with_suffix(".bin").stat().st_size
            for p in ("fp32", "int4-exact")
        ]
        assert sizes[1] * 4 < sizes[0]
