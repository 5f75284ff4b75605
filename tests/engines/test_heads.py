"""The trained draft: every library runs the same head over rings of its own, and the shipped one is
often right about the built-in model.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_graph import Recorder
from head_files import write_head
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from race_runs import run_solo

from backend.bench.prompts import PROMPTS
from backend.engines.heads.head import (
    INPUT,
    SHIPPED,
    Floats,
    Head,
    HeadFile,
    HeadNetwork,
    HeadShape,
    bias_of,
    int8_rows,
    read_head,
    tensor,
)
from backend.engines.heads.openvino import SETTINGS, OpenVINOHead
from backend.engines.heads.torch import IDLE, WIDTHS, DeviceHead, TorchHead
from backend.engines.torch.captured import uncaptured
from backend.models.files import model_files
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import HiddenStates, Logits, ModelSpec, Request, chain_parents

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = HeadShape(32, 4, 2, 8, 64, 1e-5, 1e4, layers=2, reads=(0, 1), window=11)
VOCABULARY, KNOWN = 60, np.arange(0, 60, 2)


def a_module() -> TorchHead:
    """One whose matrices lie on grids of 8 bits, as files hold them."""
    torch.manual_seed(3)

    def on_grid(*size: int) -> torch.Tensor:
        codes, scales = int8_rows(0.3 * torch.randn(size).numpy())
        return torch.from_numpy(codes * scales)

    module = TorchHead(SHAPE, on_grid(VOCABULARY, 32), on_grid(len(KNOWN), 32))
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data = on_grid(*parameter.shape)
    return module.eval()


MODULE = a_module()
FILE = HeadFile(SHAPE, {k: v.numpy() for k, v in MODULE.state_dict().items()}, KNOWN, "")
RECORDER = Recorder()


class HostHead:
    """The head as it is defined: the module over a ring that it is handed in every pass."""

    shape, vocabulary, seconds = SHAPE, KNOWN, 0.0

    def open(self) -> "HostHead":
        ring, size = HostHead(), (SHAPE.layers, SHAPE.kv_heads, SHAPE.slots + 1, SHAPE.head_dim)
        ring.both = torch.zeros(2, *size)
        return ring

    @torch.inference_mode()
    def run(
        self,
        features: Floats,
        tokens: Sequence[int],
        positions: NDArray[np.int64],
        visible: NDArray[np.bool_],
    ) -> tuple[Logits, HiddenStates]:
        places, bias = torch.from_numpy(positions), bias_of(visible, len(tokens))
        logits, state, *rows = MODULE(
            torch.from_numpy(features), torch.tensor(list(tokens)), places,
            *self.both, torch.from_numpy(bias),
        )  # fmt: skip
        self.both[:, :, :, places % SHAPE.slots] = torch.stack(rows)
        return logits.numpy(), state.numpy()

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def heads() -> dict[str, Head]:
    table = MODULE.embedding.numpy()
    output = np.zeros((VOCABULARY, 32), np.float32)
    output[KNOWN] = MODULE.output.numpy()
    exactly = SETTINGS | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}  # else activations are rounded
    return {
        "run": DeviceHead(MODULE, KNOWN, uncaptured),
        "replayed": DeviceHead(MODULE, KNOWN, RECORDER),
        "openvino": OpenVINOHead(FILE, table, output, exactly),
    }


def assert_same(one: HeadNetwork, other: HeadNetwork, tokens: list[int], length: int) -> None:
    states = np.random.default_rng(length).normal(size=(len(tokens), 32)).astype(np.float32)
    got, wanted = (net.read(length, tokens, states, wanted=True) for net in (one, other))
    np.testing.assert_allclose(got, wanted, atol=1e-3)


@pytest.mark.parametrize("name", ["run", "replayed", "openvino"])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_ring_is_the_one_on_the_host(
    heads: dict[str, Head], name: str, data: st.DataObject
) -> None:
    """Chunks of any size, round the ring more than once; guesses give way to the text."""
    one, other, length = HeadNetwork(heads[name]), HeadNetwork(HostHead()), 1
    for _ in range(data.draw(st.integers(1, 8))):
        tokens = data.draw(st.lists(st.integers(0, 59), min_size=1, max_size=SHAPE.window))
        assert_same(one, other, tokens, length)
        length += len(tokens)
        for i, token in enumerate(data.draw(st.lists(st.integers(0, 59), max_size=3))):
            assert_same(one, other, [token], length + i)
        one.rewind(length)
        other.rewind(length)
    one.close()


@pytest.mark.parametrize("name", ["replayed", "openvino"])
def test_rings_are_apart_and_graphs_are_used_again(heads: dict[str, Head], name: str) -> None:
    head, before = heads[name], RECORDER.captured
    one, two = HeadNetwork(head), HeadNetwork(head)
    assert_same(one, HeadNetwork(HostHead()), [1, 2, 3], 1)
    assert_same(two, HeadNetwork(HostHead()), [9], 1)
    assert (RECORDER.captured - before) % len(WIDTHS) == 0
    for network in (one, one, two):
        network.close()
    captured = RECORDER.captured
    again = [HeadNetwork(head), HeadNetwork(head)]
    assert RECORDER.captured == captured
    assert_same(again[0], HeadNetwork(HostHead()), [4], 1)
    for ring in (*again, *(HeadNetwork(head) for _ in range(IDLE))):
        ring.close()
    if isinstance(head, DeviceHead):
        assert len(head.idle) <= IDLE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tables_are_read_in_every_type_that_weights_come_in(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    table = torch.randn(7, 5).to(dtype)
    save_file({"other": torch.ones(3), INPUT: table}, f"{tmp_path}/a.safetensors")
    np.testing.assert_array_equal(tensor(tmp_path, INPUT), table.float().numpy())


# The shipped one ----------------------------------------------------------------------------------


@pytest.mark.model
@pytest.mark.parametrize("engine", ["openvino", pytest.param("torch", marks=pytest.mark.thorough)])
def test_features_are_what_the_output_projection_reads_and_guesses_of_them_are_often_right(
    engine: str,
) -> None:
    """Of every row, whether its logits were asked for or not. A broken cache, a feature off by one
    or a wrong token map would fall far below the floor.
    """
    models, spec = LoadedModels(idle_warm_up=True), ModelSpec(engine=engine)
    target = models.get(spec, print)
    table = tensor(model_files("built-in", print).folder, INPUT)
    session = target.open()
    tokens = target.tokenizer.encode("The capital of France is Paris.", chat=True)
    logits = session.forward(tokens, chain_parents(len(tokens)), (2, len(tokens) - 1))
    features = session.hidden_states()
    assert features.shape == (len(tokens), table.shape[1])
    assert np.abs(features[[2, -1]] @ table.T - logits).max() < 1e-3
    session.close()
    race = Race(
        Request(PROMPTS[2].text, 32), (parse_column("speculative:draft=trained,k=1"),), spec
    )
    score = run_solo(race, 0, models)
    assert score.accepted / score.drafted > 0.3


@pytest.mark.model
def test_the_shipped_draft_was_trained_for_the_built_in_model(
    tmp_path: Path,
) -> None:
    """A built-in model of another fingerprint would be another one to its own draft. What is read
    is written again as it was.
    """
    file, files = read_head(SHIPPED), model_files("built-in", print)
    assert (np.diff(file.tokens) > 0).all()
    assert 0 <= file.tokens[0] <= file.tokens[-1] < files.vocab_size
    assert file.target == files.fingerprint
    again = tmp_path / "again.safetensors"
    write_head(again, file.shape, file.weights, file.tokens, file.target)
    assert read_head(again).weights.keys() == file.weights.keys()
    for name, value in read_head(again).weights.items():
        np.testing.assert_allclose(value, file.weights[name], rtol=1e-6)
