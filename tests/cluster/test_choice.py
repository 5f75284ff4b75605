"""Which machine a race goes to: the first free one that can run it, or the one it goes on from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.cluster.choice import Machine, Wanted, choose, wanted
from backend.errors import DerbyError
from backend.kvcache.sources import Visitor
from backend.racing.commands import Measure, SaveColumn
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import AnswerSoFar, ModelSpec, Request

CPU = Machine("c", "cpu", devices={"openvino": ["CPU"], "torch": ["cpu"]}, models=("/m",))
GPU = Machine("g", "gpu", devices={"openvino": ["CPU", "GPU.0"], "torch": ["cpu", "cuda"]})
LATE = Machine("l", "late", devices=GPU.devices, preparing="Loading...")
BOTH = (CPU, GPU)
CUDA = ModelSpec(engine="torch", device="cuda")


def race(*columns: str, **more: object) -> Race:
    return Race(Request("a"), tuple(map(parse_column, columns)), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "able"),
    [
        (ModelSpec(), BOTH),
        (ModelSpec(device="GPU"), (GPU,)),
        (ModelSpec(device="AUTO:GPU,CPU"), BOTH),
        (CUDA, (GPU,)),
        (ModelSpec("/m"), (CPU,)),
        (ModelSpec("owner/model"), BOTH),
        (ModelSpec("fake", "fake"), ()),
    ],
)
def test_a_machine_must_have_engine_device_and_model(
    spec: ModelSpec, able: tuple[Machine, ...]
) -> None:
    assert tuple(machine for machine in BOTH if not machine.lacks(spec)) == able


def test_what_no_machine_has_is_refused_by_name() -> None:
    with pytest.raises(DerbyError, match=r"cpu lacks the device NPU; gpu lacks the device NPU"):
        choose(BOTH, (), Wanted((ModelSpec(device="NPU"),)))
    assert choose((), (), Wanted((ModelSpec(device="NPU"),))) is None, "one may join"


@given(
    st.lists(st.sampled_from([CPU, GPU, LATE]), unique_by=lambda machine: machine.key),
    st.sets(st.sampled_from("cgl")),
    st.sampled_from([(), (ModelSpec(),), (ModelSpec(), ModelSpec(device="GPU"))]),
    st.sampled_from(["", "c", "g", "gone"]),
    st.booleans(),
)
def test_the_first_free_one_that_can_is_taken(
    machines: list[Machine],
    busy: set[str],
    specs: tuple[ModelSpec, ...],
    home: str,
    goes_on: bool,
) -> None:
    able = [m for m in machines if not any(map(m.lacks, specs))]
    free = [m for m in able if m.key not in busy and not m.preparing]
    try:
        chosen = choose(machines, busy, Wanted(specs, "v", goes_on), home)
    except DerbyError:
        assert machines
        assert not able
        return
    at_home = [m for m in able if m.key == home]
    if at_home and (goes_on or at_home[0] in free):
        assert chosen == (at_home[0] if at_home[0] in free else None)
    else:
        assert chosen == (free[0] if free else None)


def test_what_commands_want() -> None:
    plain = race("kv", "kv@torch/fp32/cuda", scope=Visitor("v"))
    asked = wanted((Measure(plain.columns, plain.target), plain))
    assert asked.specs == (ModelSpec(), ModelSpec(engine="torch", device="cuda"))
    assert (asked.scope, asked.goes_on) == ("v", False)
    assert wanted((race("@http://127.0.0.1:9"),)) == Wanted()
    assert wanted((SaveColumn(plain, 0, AnswerSoFar((1,))),)).goes_on
    assert wanted((race("kv", earlier=(AnswerSoFar((1,)),)),)).goes_on
    restored = race("kv", earlier=(AnswerSoFar(snapshot="0123456789abcdef"),))
    assert not wanted((restored,)).goes_on, "its folder is shared"
