"""Code that transformers' generate() runs from a folder, as columns: ours writes what KV reuse
writes, somebody else's runs with a streamer and without.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from chat_model import stating
from eagle3_drafts import random_draft
from families import USUAL, make
from race_runs import board_after, events_of
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from backend.libraries.transformers import CODE_FILE, NO_TOKEN, OWN, OWN_CODE
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import why
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = "the cat and the dog, the cat and the "

#: Columns of our own code, by what they do.
CODE = {
    **{name: f"transformers:generate={name},draft=DRAFT" for name in OWN},
    "few": "transformers:generate=lookahead,options=window=2;level=2;guesses=1",
    "many": "transformers:generate=lookahead,options=window=7;level=5;guesses=7",
    "long": "transformers:generate=hybrid,draft=DRAFT,k=9,options=ngram=1",
}

#: Somebody else's code, which says hello and writes what generate() writes; and the same streamed.
HELLO = """
import torch
def generate(model, input_ids, streamer=None, max_new_tokens=1, hello=1, **arguments):
    output = model.generate(input_ids, max_new_tokens=max_new_tokens - hello, do_sample=False)
    hello = torch.full((1, hello), 104)
    output = torch.cat([input_ids, hello, output[:, input_ids.shape[1]:]], -1)
    {stream}
    return output
"""
STREAM = "[streamer.put(part) for part in output[0, input_ids.shape[1] :].split(2)]"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft of random weights for it, and code of somebody else."""
    root = tmp_path_factory.mktemp("models")
    make("llama", root / "target")
    draft = random_draft(root / "draft", USUAL, (0, 1, 1))
    stating("config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 1])(draft)
    for name, stream in (("at-once", ""), ("streamed", STREAM)):
        file = root / name / CODE_FILE
        file.parent.mkdir(parents=True)
        file.write_text(HELLO.replace("{stream}", stream))
    return root


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return LoadedModels()


def raced(folders: Path, models: LoadedModels, request: Request, *columns: str) -> Scoreboard:
    words = [column.replace("DRAFT", str(folders / "draft")) for column in columns]
    parsed = tuple(map(parse_column, words))
    race = Race(request, parsed, ModelSpec(str(folders / "target"), "torch"))
    board = board_after(parsed, events_of(race, models))
    assert not any(score.message for score in board.scores), [s.message for s in board.scores]
    return board


@pytest.mark.parametrize(
    ("sampling", "ignore_eos"),
    [
        (Sampling(), True),
        (Sampling(repetition_penalty=1.3), False),
        (Sampling(0.8, seed=3), True),
        (Sampling(1.0, 40, 0.9, 2**40, 0.01, 1.1), False),
    ],
    ids=["greedy", "with a penalty", "drawn", "drawn from few"],
)
def test_our_code_writes_what_key_value_reuse_writes(
    folders: Path, models: LoadedModels, sampling: Sampling, ignore_eos: bool
) -> None:
    request = Request(PROMPT, 32, sampling, chat=False, ignore_eos=ignore_eos)
    board = raced(folders, models, request, "kv", *CODE.values())
    plain, *others = board.scores
    for name, score in zip(CODE, others, strict=True):
        assert score.tokens == plain.tokens, name
    rounds = dict(zip(CODE, (score.steps for score in others), strict=True))
    assert rounds["kv"] == len(plain.tokens)
    if sampling == Sampling():
        assert max(rounds["lookup"], rounds["lookahead"], rounds["many"]) < 32


class Rounds(BaseStreamer):
    """What a streamer is given behind the prompt."""

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.rounds.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("strategy", OWN)
def test_a_text_ends_within_a_round_as_it_does_by_generate(folders: Path, strategy: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folders / "target").eval()
    ids = torch.tensor([list(PROMPT.encode())])
    own = {"custom_generate": str(OWN_CODE), "strategy": strategy, "draft": str(folders / "draft")}

    def written(end: int, **code: str) -> tuple[list[int], Rounds]:
        streamer = Rounds()
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=0,
            streamer=streamer,
            **code,
        )
        return output[0].tolist(), streamer

    endless, streamer = written(NO_TOKEN, **own)
    assert [token for round_ in streamer.rounds for token in round_] == endless
    assert streamer.ended
    tokens = endless[len(ids[0]) :]
    ends = {tokens.index(round_[0]) for round_ in streamer.rounds[1:] if len(round_) > 1}
    assert ends or strategy in ("kv", "eagle3"), "some rounds write more than one token"
    for end in sorted(ends)[:4]:
        assert (
            written(tokens[end], **own)[0]
            == written(tokens[end])[0]
            == endless[: len(ids[0]) + end + 1]
        )


def test_code_of_somebody_else_is_a_column(folders: Path, models: LoadedModels) -> None:
    """What it streams comes round by round. What it does not is no photo finish, as nobody knows
    how fast it was written, and "Why?" says so.
    """
    code = [
        f"transformers:generate={folders / name},options=hello={count}"
        for name, count in (("streamed", 1), ("at-once", 0))
    ]
    request = Request(PROMPT, 24, chat=False, ignore_eos=True)
    board = raced(folders, models, request, "kv", "transformers", *code)
    _, plain, streamed, at_once = board.scores
    assert streamed.tokens == [104, *plain.tokens[:23]]
    assert at_once.tokens == plain.tokens
    assert [score.steps for score in (streamed, at_once)] == [12, 1]
    result = result_of(board)
    assert result.moment == min(row.moment for row in result.rows[:2]) > 0
    causes = [why(board, row) for row in result.rows]
    assert ["at its end" in cause for cause in causes] == [False, False, False, True]
