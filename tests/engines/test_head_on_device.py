"""The head on a device, its rings there too, drafts what it drafts from a ring on the host."""

from typing import Any

import numpy as np
import pytest
import torch
from captured import Recorder
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.heads.device import IDLE, WIDTHS, DeviceHead
from backend.engines.heads.draft import HIDDEN, Floats, HeadPass, HostRing, Ring
from backend.engines.heads.file import HeadShape
from backend.engines.heads.network import TorchHead
from backend.engines.torch.graphs import uncaptured

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = HeadShape(16, 4, 2, 4, 24, 1e-5, 1e4, layers=2, reads=(0, 1), window=11)
VOCABULARY, KNOWN = 60, np.arange(0, 60, 2)


def a_module() -> TorchHead:
    torch.manual_seed(3)
    module = TorchHead(SHAPE, torch.randn(VOCABULARY, 16), torch.randn(len(KNOWN), 16))
    for parameter in module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return module.eval()


MODULE = a_module()
RECORDER = Recorder()
DEVICE_HEADS = {
    "run": DeviceHead(MODULE, KNOWN, uncaptured),
    "replayed": DeviceHead(MODULE, KNOWN, RECORDER),
}


@torch.inference_mode()
def by_module(*inputs: Any) -> HeadPass:
    logits, feature, keys, values = MODULE(*map(torch.from_numpy, inputs))
    return HeadPass(logits.numpy(), feature.numpy(), keys.numpy(), values.numpy())


def bias_of(n: int, held: int) -> Floats:
    """A chain behind `held` tokens, all of which are in the ring."""
    window, slots = SHAPE.window, SHAPE.slots
    bias = np.full((n, slots + n), HIDDEN)
    for i in range(n):
        for position in range(max(0, held + i - window + 1), held):
            bias[i, position % slots] = 0
        bias[i, slots : slots + i + 1] = 0
    return bias


def assert_same(one: Ring, other: Ring, tokens: list[int], held: int) -> None:
    rng = np.random.default_rng(held)
    features = rng.normal(size=(len(tokens), SHAPE.hidden)).astype(np.float32)
    ids, positions = np.array(tokens), np.arange(held, held + len(tokens))
    inputs = (features, ids, positions, bias_of(len(tokens), held))
    for got, want in zip(one.run(*inputs), other.run(*inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("name", DEVICE_HEADS)
@settings(max_examples=25)
@given(st.data())
def test_a_ring_on_the_device_is_one_on_the_host(name: str, data: st.DataObject) -> None:
    """Chunks of any size, round the ring more than once; guesses give way to the text."""
    one, other = DEVICE_HEADS[name].open(), HostRing(SHAPE, by_module)
    held = 0
    for _ in range(data.draw(st.integers(1, 8))):
        n = data.draw(st.integers(1, SHAPE.window))
        tokens = data.draw(st.lists(st.integers(0, 59), min_size=n, max_size=n))
        assert_same(one, other, tokens, held)
        held += n
        guesses = data.draw(st.lists(st.integers(0, 59), max_size=3))
        for i, token in enumerate(guesses):
            assert_same(one, other, [token], held + i)
    one.close()


def test_rings_are_apart_and_their_graphs_are_used_again() -> None:
    head, before = DEVICE_HEADS["replayed"], RECORDER.captured
    one, two = head.open(), head.open()
    assert_same(one, HostRing(SHAPE, by_module), [1, 2, 3], 0)
    assert_same(two, HostRing(SHAPE, by_module), [9], 0)
    assert (RECORDER.captured - before) % len(WIDTHS) == 0
    one.close()
    one.close()
    two.close()
    captured = RECORDER.captured
    again = [head.open(), head.open()]
    assert RECORDER.captured == captured
    assert_same(again[0], HostRing(SHAPE, by_module), [4], 0)
    with pytest.raises(RuntimeError, match="closed"):
        assert_same(one, two, [1], 0)
    for ring in (*again, *(head.open() for _ in range(IDLE))):
        ring.close()
    assert len(head._idle) <= IDLE
