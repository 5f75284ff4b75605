"""Columns on real models with recurrent layers, tiny and random: whatever drafts, cuts, saves or
borrows, the text is that of plain decoding, which is what generate() writes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import families
import pytest

from backend.costs.pass_costs import PassCosts
from backend.grammar.sources import shipped
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.metrics import Score
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = families.OLD_NAMES

#: The others run under the mark; one of each kind of recurrence is always held by its engine.
QUICK = ("qwen3_5",)
NAMES = [
    (name, "torch") if name in QUICK else pytest.param((name, "torch"), marks=pytest.mark.thorough)
    for name in families.RECURRENT
]
NAMES += [
    pytest.param((name, "openvino"), marks=pytest.mark.thorough) for name in families.CONVERTED
]

#: So that `auto` drafts, and nothing is measured.
COSTS = PassCosts((1, 2, 4, 8, 16), (1e-3, 1.1e-3, 1.2e-3, 1.4e-3, 2e-3), width_change=1e-3)

PROMPT = "one two three, one two four, one two three, one two four, one two five, one two "
SAMPLINGS = (Sampling(), Sampling(0.8, seed=3))
ANN = "ann"

#: A draft that is right, one that mostly is, and whatever needs none.
DRAFTED = (
    "speculative:k=4,draft=fp32",
    "speculative:k=4,draft=bf16",
    "speculative",
    "lookup:k=5,ngram=1",
    "lookup",
)


@dataclass
class Tiny:
    """A family's model, loaded once."""

    models: LoadedModels
    target: ModelSpec

    def race(
        self, names: Sequence[str], request: Request, visitor: str = "", **settings: Any
    ) -> list[Score]:
        """What came of the columns of these names, with these settings too."""
        columns = tuple(parse_column(name).with_settings(settings) for name in names)
        return self.run(Race(request, columns, self.target, visitor=visitor))

    def run(self, race: Race) -> list[Score]:
        """What came of the columns, none of which fails."""
        board = Scoreboard(race.columns)
        engine = self.models.get(self.target, print)
        self.models._costs[engine.spec] = COSTS
        race.run(self.models, board.add, lambda: False)
        assert [score.message for score in board.scores] == [""] * len(race.columns)
        return list(board.scores)


@pytest.fixture(scope="module", params=NAMES, ids="-".join)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiny]:
    name, engine = request.param
    folder = families.make(name, tmp_path_factory.mktemp("recurrent"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODE_DERBY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Tiny(LoadedModels(idle_warm_up=True), ModelSpec(str(folder), engine))


def asked(tokens: int = 24, sampling: Sampling = SAMPLINGS[1], prompt: str = PROMPT) -> Request:
    return Request(prompt, tokens, sampling, chat=False)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_column_writes_the_plain_text(tiny: Tiny, sampling: Sampling) -> None:
    plain, stateless, *drafted = tiny.race(
        ("kv", "stateless:limit=6", *DRAFTED), asked(sampling=sampling)
    )
    assert plain.recurrent
    assert stateless.tokens == plain.tokens[:6]
    assert [score.tokens for score in drafted] == [plain.tokens] * len(DRAFTED)
    assert drafted[0].acceptance == 1
    assert sum(score.drafted - score.accepted for score in drafted) > 0
    if sampling.temperature == 0:
        assert plain.tokens == generated(Path(tiny.target.name), 24)


def generated(folder: Path, tokens: int) -> list[int]:
    """What transformers writes greedily with the model as it loads it itself."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([families.byte_tokenizer().encode(PROMPT)])
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mask = torch.ones_like(ids)
    written = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens)
    return written[0, ids.shape[1] :].tolist()


def test_a_grammar_binds_drafted_columns_as_it_binds_plain_ones(tiny: Tiny) -> None:
    plain, *drafted = tiny.race(("kv", *DRAFTED[1:]), asked(), grammar=shipped()["date"])
    assert plain.forced
    assert [score.tokens for score in drafted] == [plain.tokens] * len(drafted)


def test_a_kept_session_changes_no_text(tiny: Tiny) -> None:
    name = "kv:cache=session"
    for prompt in (PROMPT, PROMPT, f"{PROMPT}or not", f"{PROMPT[:30]}!{PROMPT[31:]}"):
        (found,) = tiny.race([name], asked(12, prompt=prompt), ANN)
        (alone,) = tiny.race(["kv"], asked(12, prompt=prompt))
        assert found.tokens == alone.tokens
    tiny.models.sessions.forget(ANN)


def test_a_program_s_slots_are_filled_alike_and_cut_behind_stop_strings(tiny: Tiny) -> None:
    begun = f'{PROMPT}{{{{select "s" "red|green"}}}}: {{{{gen "a" regex="[a-z]{{12}}" max_tokens=12'
    (free,) = tiny.race(["kv"], asked(prompt=f"{begun}}}}}"))
    stop = str(free.values["a"])[6:9]
    program = f'{begun} stop="{stop}"}}}} and {{{{gen "b" max_tokens=5}}}}'
    plain, *others = tiny.race(("kv", "no_reuse", *DRAFTED), asked(prompt=program))
    assert plain.values["a"] == str(free.values["a"]).partition(stop)[0]
    for other in others:
        assert (other.values, other.tokens) == (plain.values, plain.tokens)
