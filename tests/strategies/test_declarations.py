"""What strategies declare: whole, without slips, and true of what they build and load."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages import install

from backend.costs import stated_costs
from backend.drafters.lookahead import LADDER
from backend.engines.fake import STEEP_PASSES, FakeEngine
from backend.engines.heads.file import SHIPPED
from backend.engines.registry import all_precisions
from backend.errors import DerbyError
from backend.strategies import registry
from backend.strategies.column import default_column, parse_column, settings_of
from backend.strategies.declaration import Candidate, Strategy, Weights
from backend.strategies.registry import BASELINE, DEFAULT_COLUMNS, strategies
from backend.strategies.settings import Choice, WholeNumber
from backend.types import ModelSpec

ALL = [pytest.param(strategy, id=name) for name, strategy in strategies().items()]


def test_the_registry_is_consistent() -> None:
    assert {parse_column(column).name for column in DEFAULT_COLUMNS} <= set(strategies())
    assert len(set(DEFAULT_COLUMNS)) == len(DEFAULT_COLUMNS)
    assert len({strategy.title for strategy in strategies().values()}) == len(strategies())
    assert registry.plugin_problems() == ()
    baseline = default_column(BASELINE)
    assert baseline.plain
    assert baseline.lossless
    assert not baseline.strategy.settings
    assert not baseline.strategy.guesses


@pytest.mark.parametrize("strategy", ALL)
def test_a_strategy_is_whole(strategy: Strategy) -> None:
    column = default_column(strategy.name)
    assert strategies()[strategy.name] is strategy is column.strategy
    assert len(strategy.description) > 40
    local = strategy.ours
    assert column.with_settings(column.settings()) == column, "its own settings change nothing"
    assert parse_column(strategy.name) == column
    assert column.label == strategy.title
    server = strategy.name == "server"
    assert str(column) == (f"@{column.settings()['at']}" if server else strategy.name)
    assert set(settings_of(strategy)) == set(column.settings())
    assert ("cache" in column.settings()) == (local and strategy.keeps_cache)
    assert local <= ("grammar" in column.settings())
    longest = [f"k={each.longest}" for each in strategy.candidates if each.longest]
    for run in (*strategy.verified, *(each.settings for each in strategy.candidates), *longest):
        assert parse_column(f"{strategy.name}:{run}").name == strategy.name


def number(name: str = "size", default: int = 3, **more: Any) -> WholeNumber:
    return WholeNumber(name, "Size", "How much.", default, 1, 9, **more)


WHOLE = Strategy("ours", "Ours", "A way to decode.", (number(),))


@pytest.mark.parametrize(
    "slip",
    [
        {"name": ""},
        {"name": "two words"},
        {"name": "a@b"},
        {"name": "a:b"},
        {"title": " "},
        {"description": ""},
        {"settings": (number(), number())},
        {"settings": (number("cache"),)},
        {"settings": (number("grammar"),)},
        {"settings": (number("model"),)},
        {"settings": (number(default=10),)},
        {"settings": (number(default=0),)},
        {"settings": (number(fixes={"auto": False}),)},
        {"settings": (Choice("auto", "Auto", "Help.", "c", (("a", "A"), ("b", "B"))),)},
    ],
)
def test_a_slip_in_a_declaration_is_refused_at_once(slip: dict[str, Any]) -> None:
    assert WHOLE.settings
    with pytest.raises(ValueError, match="strategy"):
        replace(WHOLE, **slip)


@pytest.fixture
def registered_anew() -> Iterator[None]:
    registry._registered.cache_clear()
    yield
    registry._registered.cache_clear()


def test_a_strategy_of_another_package_is_a_column_like_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered_anew: None
) -> None:
    module = "from test_declarations import WHOLE as THEIRS\n"
    install(tmp_path, "their-strategy", module, registry.GROUP, "ours = their_strategy:THEIRS")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    assert "ours" in strategies()
    assert registry.plugin_problems() == ()
    column = parse_column("ours@int8:size=4,grammar=date")
    assert column.label == "Ours (int8, size=4, grammar=date)"
    assert parse_column(str(column)) == column


class Target(FakeEngine):
    """A target that is some model, and shows its hidden states or does not."""

    def __init__(self, name: str, engine: str = "openvino", *, hidden_states: bool = True) -> None:
        spec = ModelSpec(name, engine)
        super().__init__(spec, guesses="trees" if hidden_states else "none")


def wanted(draft: str, target: FakeEngine) -> Weights:
    column = default_column("speculative").with_settings({"draft": draft})
    return column.strategy.weights(column.settings(), target)


COPY = ModelSpec("built-in", "openvino", "int4")


@pytest.mark.parametrize("draft", ["hybrid", "trained"])
def test_the_trained_head_drafts_where_there_is_one(draft: str) -> None:
    assert wanted(draft, Target("built-in")) == SHIPPED


def test_a_hybrid_falls_back_to_a_copy_that_it_can_do_without() -> None:
    """Where no head was trained, or its hidden states are not shown, the int4 copy drafts; where
    that cannot be had either, prompt lookup is left.
    """
    blind = Target("built-in", hidden_states=False)
    assert wanted("hybrid", blind) == COPY
    other = replace(COPY, name="owner/model")
    assert wanted("hybrid", Target("owner/model")) == other
    on_torch = wanted("hybrid", Target("owner/model", "torch"))
    assert on_torch == other


@pytest.mark.parametrize("draft", ["int4", "hybrid", "trained"])
def test_an_option_wins_over_a_folder_of_its_name(
    draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the working directory was taken for the draft if it held one."""
    meant = wanted(draft, Target("built-in"))
    (tmp_path / draft).mkdir()
    (tmp_path / draft / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    monkeypatch.chdir(tmp_path)
    assert wanted(draft, Target("built-in")) == meant


def test_what_a_session_cannot_show_is_one_sentence() -> None:
    with pytest.raises(DerbyError, match="No trained draft fits"):
        FakeEngine().open(layers=(1, 2, -1))


def test_a_trained_head_by_name_is_never_replaced_by_something_else() -> None:
    with pytest.raises(DerbyError, match="owner/model"):
        wanted("trained", Target("owner/model"))
    with pytest.raises(DerbyError, match="No trained draft fits"):
        wanted("trained", Target("built-in", hidden_states=False))
    with pytest.raises(DerbyError, match="No trained draft fits"):
        wanted("mine.safetensors", Target("owner/model", hidden_states=False))
    ours = wanted("mine.safetensors", Target("owner/model"))
    assert ours == Path("mine.safetensors")


@pytest.mark.parametrize("precision", all_precisions())
def test_a_precision_drafts_with_that_copy_of_the_target_or_with_none(precision: str) -> None:
    expected = {
        "openvino": "torch" if precision in ("bf16", "fp16") else "openvino",
        "torch": "torch" if precision in ("fp32", "bf16", "fp16") else "openvino",
    }
    for engine, runs in expected.items():
        copy = ModelSpec("owner/model", runs, precision)
        found = wanted(precision, Target("owner/model", engine))
        assert found == copy
    fake = FakeEngine()
    assert wanted(precision, fake) == fake.spec


def test_any_other_draft_is_a_model_that_runs_as_the_target_does() -> None:
    """It was asked for by name, so there is no doing without it."""
    for engine in ("torch", "openvino", "fake"):
        target = Target("a/b", engine)
        assert wanted("other", target) == replace(target.spec, name="other")


def test_only_speculation_with_a_model_loads_anything() -> None:
    target = Target("built-in")
    for strategy in registry.OURS:
        found = strategy.weights(default_column(strategy.name).settings(), target)
        assert (found is None) == (strategy.name != "speculative")


def test_scratch_rows_reach_as_far_as_the_setting_or_any_that_auto_may_choose() -> None:
    reach = max(setting.window + setting.level for setting in LADDER)
    assert parse_column("lookahead:auto=true,window=2,level=2").scratch_depth == reach
    for window, level in ((2, 2), (5, 3), (32, 8)):
        assert parse_column(f"lookahead:window={window},level={level}").scratch_depth == (
            window + level
        )
    others = set(strategies()) - {"lookahead"}
    assert all(default_column(name).scratch_depth == 0 for name in others)


def test_a_candidate_with_a_prediction_predicts_from_pass_costs() -> None:
    steep = stated_costs(STEEP_PASSES)

    candidates: list[Candidate] = [c for s in strategies().values() for c in s.candidates]
    predictions = [c.predict(steep) for c in candidates if c.predict is not None]
    assert predictions
    assert all(prediction > 0 for prediction in predictions)
