"""Training a draft, on a tiny target of random weights in a real folder.

Held here: training's pass over whole texts is what drafting does row by row; greedy answers and
features are the target's own; an interrupted synthesis goes on with the same bytes; questions are
drawn from the nucleus; fitting makes a head right more often.
"""

import json
import shutil
from itertools import count, groupby
from pathlib import Path

import chat_model
import numpy as np
import pytest
import torch
from chat_model import END, PAD, START, VOCABULARY
from eagle3_drafts import Whole
from torch import Tensor

from backend.engines.eagle3.network import Eagle3
from backend.errors import DerbyError
from experiments import fit as fitting
from experiments.chats import (
    GIVEN,
    GREEDY,
    QUESTION,
    SAMPLED,
    Caps,
    Chat,
    Template,
    template_of,
)
from experiments.fit import Recipe, evaluate, frequent_tokens, new_draft
from experiments.shards import (
    Shard,
    Target,
    draw,
    shards_in,
    synthesise,
)
from experiments.train import DRAFT, REPORT, WEIGHTS, make, recipe_for, started

pytestmark = pytest.mark.usefixtures("one_thread")

CAPS = Caps(batch=4, question=6, long_question=9, answer=20, text=400)

#: One that is fitted fast.
RECIPE = Recipe(vocabulary=200, batch=700, rate=4e-3, steps=(1, 2))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("tiny")
    chat_model.make(folder)
    return Target(str(folder), print, torch.float32)


@pytest.fixture(scope="module")
def data(tiny: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards with their features."""
    folder = tmp_path_factory.mktemp("data")
    synthesise(folder, 1, tiny, print, CAPS)
    (only,) = shards_in(folder)
    first = int(only.answer_counts(VOCABULARY).sum())
    for shard in synthesise(folder, first + 1, tiny, print, CAPS):
        shard.add_features(tiny.features)
    return folder


def a_draft(tiny: Target) -> Eagle3:
    """One in which nothing is zero."""
    draft = new_draft(tiny.files.folder, np.arange(200), torch.ones(3 * tiny.width), 4)
    torch.nn.init.normal_(draft.fc.weight, std=0.2)
    return draft.eval()


def test_whole_texts_at_once_are_what_drafting_does_row_by_row(tiny: Target) -> None:
    """Step s at place i is the s-th token drafted in a row from place i - s."""
    draft, steps, n = a_draft(tiny), 3, 13
    rng = np.random.default_rng(8)
    tokens = torch.from_numpy(rng.integers(0, VOCABULARY, n + 1))
    states = torch.from_numpy(rng.normal(size=(n, draft.shape.states)).astype(np.float32))
    with torch.no_grad():
        first = seen = draft.fc(states)[None]
        earlier: list[tuple[Tensor, Tensor]] = []
        wanted = list[Tensor]()
        for step in range(steps):
            bias = fitting._visible(n, step, seen.device)
            predicted, earlier = fitting.draft_step(
                draft, seen, tokens[None, 1:], torch.arange(1, n + 1), earlier, bias
            )
            wanted.append(predicted[0])
            seen = torch.cat([first[:, :1], predicted[:, :-1]], 1)
    for start in (0, 1, 6, n - steps):
        drafting, following = Whole(draft), tokens[1:].tolist()
        drafting.read(1, following[: start + 1], states[: start + 1].numpy())
        for step in range(steps):
            if step:
                drafting.guess(1 + start + step, following[start + step])
            row = wanted[step][start + step]
            torch.testing.assert_close(drafting.state, row, atol=1e-4, rtol=0)


def test_a_draft_has_the_answers_most_frequent_tokens(tmp_path: Path) -> None:
    tokens = np.array([9, 9, 9, 9, 5, 5, 7, 7, 7, 3], dtype=np.uint16)
    kinds = np.array([GIVEN, QUESTION, GIVEN, QUESTION, GREEDY, SAMPLED, *[GREEDY] * 3, SAMPLED])
    shard = Shard(tmp_path / "shard-00000.npz")
    np.savez_compressed(shard.path, tokens=tokens, kind=kinds, offsets=np.array([0, 10]))
    assert frequent_tokens([shard], 2, 12).tolist() == [5, 7]
    assert frequent_tokens([shard, shard], 3, 12).tolist() == [3, 5, 7]


def test_greedy_answers_are_the_targets_own_choices_and_features_are_its_own(
    tiny: Target, data: Path
) -> None:
    """However conversations left the batch before: a cache row out of place would show here. All
    texts are short enough, question and answer follow one another, and no question holds a special
    token.
    """
    judged = 0
    for shard in shards_in(data):
        with np.load(shard.path) as stored:
            kinds, offsets = stored["kind"], stored["offsets"]
        for text, a, b in zip(shard.texts(), offsets[:-1], offsets[1:], strict=True):
            answer = GREEDY if GREEDY in kinds[a:b] else SAMPLED
            turns = [kind for kind, _ in groupby(kinds[a:b].tolist()) if kind != GIVEN]
            assert turns in ([QUESTION, answer], [QUESTION, answer] * 2)
            assert b - a <= CAPS.text
            assert not {START, PAD} & set(text.tokens[kinds[a:b] == QUESTION].tolist())
            output = tiny._model(torch.from_numpy(text.tokens)[None], output_hidden_states=True)
            best = output.logits[0].argmax(1).numpy()
            greedy = np.flatnonzero(kinds[a:b] == GREEDY)
            assert np.array_equal(text.tokens[greedy], best[greedy - 1])
            judged += len(greedy)
            layers = [output.hidden_states[layer] for layer in (*tiny.reads, -1)]
            own = torch.cat(layers, -1)[0].detach().bfloat16().float().numpy()
            stored_states = (text.features.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_allclose(stored_states, own, rtol=1 / 128, atol=1e-5)
    assert judged > 50


def test_an_interrupted_synthesis_goes_on_with_the_same_bytes(
    tiny: Target, data: Path, tmp_path: Path
) -> None:
    first, second = (shard.path for shard in shards_in(data))
    shutil.copy(first, tmp_path)
    (tmp_path / f"{second.name}.partial").write_bytes(b"cut off")
    wanted = answers_in(data)
    lines: list[str] = []
    shards = synthesise(tmp_path, wanted, tiny, lines.append, CAPS)
    assert [shard.path.name for shard in shards] == [first.name, second.name]
    assert (tmp_path / second.name).read_bytes() == second.read_bytes()
    assert first.read_bytes() != second.read_bytes()
    assert len(lines) == 1
    assert not list(tmp_path.glob("*.partial"))


@pytest.fixture
def template() -> Template:
    return template_of(chat_model.tokenizer())


def test_the_template_is_taken_apart_as_it_was_put_together(template: Template) -> None:
    fast = chat_model.tokenizer()
    turns = [("system", "S"), ("user", "Q"), ("assistant", "A"), ("user", "R")]
    messages = [{"role": role, "content": text} for role, text in turns]
    whole_text = [*template.opening("S", "Q"), template.end, *template.to_answer]
    whole_text += [*fast.encode("A"), template.end, *template.to_question, *fast.encode("R")]
    rendered = str(fast.apply_chat_template(messages, tokenize=False))
    assert f"{fast.decode(whole_text)}<|im_end|>\n" == rendered
    short = str(fast.apply_chat_template(messages[1:2], tokenize=False))
    assert f"{fast.decode(template.opening('', 'Q'))}<|im_end|>\n" == short
    assert (template.end, template.special) == (END, {START, END, PAD})


@pytest.mark.parametrize(
    ("phase", "shares"),
    [
        (QUESTION, [0.625, 0.375, 0.0]),
        (SAMPLED, [0.663, 0.320, 0.014]),  # at temperature 0.7
        (GREEDY, [1.0, 0.0, 0.0]),
    ],
)
def test_questions_are_drawn_from_the_nucleus_and_answers_from_everything(
    template: Template, phase: int, shares: list[float]
) -> None:
    logits = torch.full((400, VOCABULARY), -torch.inf)
    logits[:, [70, 80, 90]] = torch.tensor([0.6, 0.36, 0.04]).log()
    chats = [Chat(template, np.random.default_rng(1), Caps()) for _ in range(400)]
    for chat in chats:
        chat._asking, chat.phase = 1.0, phase
    drawn = draw(logits, chats, torch.Generator().manual_seed(0))
    counts = np.bincount(drawn, minlength=100)[[70, 80, 90]]
    assert counts / 400 == pytest.approx(shares, abs=0.1)
    assert (counts > 0).tolist() == [share > 0 for share in shares]


def test_fitting_makes_a_draft_right_more_often(
    tiny: Target, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()  # so many batches on any machine: a second passes whenever the time is asked
    monkeypatch.setattr(fitting, "monotonic", lambda: next(ticks))
    shards = shards_in(data)
    draft, teacher, _ = started(data / "none", tiny, RECIPE, shards, resume=False)
    before = evaluate(draft, teacher, shards, RECIPE, 2)
    list(fitting.fit(draft, teacher, shards, RECIPE, 600))
    after = evaluate(draft, teacher, shards, RECIPE, 2)
    assert after[0] > before[0] + 0.2
    assert after[1] > before[1] + 0.1


def answers_in(folder: Path) -> int:
    """Tokens of answers in its shards."""
    return sum(int(shard.answer_counts(VOCABULARY).sum()) for shard in shards_in(folder))


def test_training_keeps_what_is_there_and_reports_the_held_out_shard(
    tiny: Target, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(data, folder)
    wanted = answers_in(data)
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*")}
    report = make(folder, wanted, 0.5, tiny, RECIPE, caps=CAPS)
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*")} == times
    assert json.loads((folder / REPORT).read_text()) == json.loads(json.dumps(report))
    sizes = report["held out"]
    assert sum(sizes.values()) == sum(len(text.tokens) for text in shards_in(folder)[0].texts())
    assert report["draft"]["bytes"] == (folder / DRAFT / WEIGHTS).stat().st_size
    draft, teacher, _ = started(folder / DRAFT, tiny, RECIPE, shards_in(folder), resume=True)
    hits = evaluate(draft, teacher, shards_in(folder)[:1], RECIPE, 4)
    # Of two loadings a nearly equal pair may be chosen the other way round.
    assert report["right at each draft step"] == pytest.approx(hits, abs=0.03)
    resumed = make(folder, wanted, 1e-9, tiny, RECIPE, resume=True, caps=CAPS)
    assert resumed["right at each draft step"] == pytest.approx(hits, abs=0.1)
    anew = make(folder, wanted, 1e-9, tiny, RECIPE, caps=CAPS)
    assert anew["draft"]["sha256"] != resumed["draft"]["sha256"]


def test_a_run_that_cannot_train_says_why(tiny: Target, tmp_path: Path) -> None:
    with pytest.raises(DerbyError, match="held out"):
        make(tmp_path / "a", 1, 1, tiny, RECIPE, caps=CAPS)
    with pytest.raises(DerbyError, match="Llama-shaped"):
        recipe_for(tiny)
