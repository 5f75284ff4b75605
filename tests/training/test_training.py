"""Training a draft: conversations, features, the head and its fit, on a tiny target.

Its three layers have random weights, so what it writes is noise; but it is a real folder with a
tokenizer and a chat template, and all but the devices is what the built-in model is trained with.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import chat_model
import numpy as np
import pytest
import torch
from chat_model import CHATML, END, PAD, START, VOCABULARY
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from backend.engines.heads.file import read_head, write_head
from backend.engines.heads.network import TorchHead
from backend.errors import DerbyError
from backend.models.files import model_files
from backend.training import fit as fitting
from backend.training.chats import Caps, Chat, Template, openings, template_of
from backend.training.fit import Recipe, evaluate, frequent_tokens, lessons, new_head
from backend.training.shards import GIVEN, GREEDY, QUESTION, SAMPLED, Shard, Text, shards_in
from backend.training.synthesis import DRAWS, SEED, conversations, draw, synthesise
from backend.training.targets import OpenVINOTarget, TorchTarget
from backend.training.train import HEAD, REPORT, Work, recipe_for, train
from backend.training.whole_files import alone_in, whole

pytestmark = pytest.mark.usefixtures("one_thread")

CAPS = Caps(batch=4, question=6, long_question=9, answer=20, text=400)

#: A head that lacks the middle of its target, and is target_logits fast.
RECIPE = Recipe(sources=(0, 2), reads=(0, 1), vocabulary=200, batch=700, rate=4e-3, steps=(1, 2))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TorchTarget:
    folder = tmp_path_factory.mktemp("tiny")
    chat_model.make(folder)
    return TorchTarget(model_files(str(folder), print), "cpu")


@pytest.fixture(scope="module")
def data(tiny: TorchTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards with their features."""
    folder = tmp_path_factory.mktemp("data")
    synthesise(folder, 1, tiny, print, CAPS)
    (only,) = shards_in(folder)
    first = int(only.answer_counts(VOCABULARY).sum())
    for shard in synthesise(folder, first + 1, tiny, print, CAPS):
        shard.add_features(tiny.features)
    return folder


def a_head(tiny: TorchTarget, recipe: Recipe = RECIPE, *, window: int = 256) -> TorchHead:
    """One whose reads are not zero, as they are at first."""
    torch.manual_seed(4)
    folder = tiny.files.folder
    start = new_head(folder, np.arange(200), recipe)
    shape = replace(start.shape, window=window)
    head = TorchHead(shape, start.embedding, start.output)
    head.load_state_dict(start.state_dict())
    for read in head.reads.values():
        torch.nn.init.normal_(read.get_parameter("weight"), std=0.2)
    return head.eval()


def a_text(n: int, hidden: int = 32) -> tuple[Tensor, Tensor]:
    """Tokens int64 [n] and features float32 [n, D]."""
    rng = np.random.default_rng(8)
    features = rng.normal(size=(n, hidden)).astype(np.float32)
    return torch.from_numpy(rng.integers(0, VOCABULARY, n)), torch.from_numpy(features)


class ByHand:
    """Drafts row by row with TorchHead.forward, as engines do."""

    def __init__(self, head: TorchHead, tokens: Tensor) -> None:
        shape = head.shape
        self.keys = torch.zeros(shape.layers, shape.kv_heads, 0, shape.head_dim)
        self.values, self.head, self.tokens = self.keys, head, tokens

    @torch.no_grad()
    def row(self, feature: Tensor) -> Tensor:
        """The feature [D] of the next token, predicted from that of the token before it."""
        place = self.keys.shape[2]
        behind = torch.arange(place, -1, -1)
        bias = torch.where(behind < self.head.shape.window, 0.0, -1e9)[None]
        token, position = self.tokens[place + 1][None], torch.tensor([place + 1])
        _, found, k, v = self.head(feature[None], token, position, self.keys, self.values, bias)
        self.keys, self.values = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        return found[0]


@torch.no_grad()
def all_at_once(head: TorchHead, tokens: Tensor, features: Tensor, steps: int) -> list[Tensor]:
    """Predicted features [n, D] of each draft step, from every place of the text."""
    n = len(tokens) - 1
    seen, earlier, found = features[None, :n], [[] for _ in head.layers], []
    for step in range(steps):
        bias = fitting._visible(torch.arange(n), step, head.shape.window)
        positions = torch.arange(1, n + 1)
        predicted, earlier = head.draft_step(seen, tokens[None, 1:], positions, earlier, bias)
        found.append(predicted[0])
        seen = torch.cat([features[None, :1], predicted[:, :-1]], 1)
    return found


@pytest.mark.parametrize("window", [256, 5])
def test_whole_texts_at_once_are_what_drafting_does_row_by_row(
    tiny: TorchTarget, window: int
) -> None:
    """Step s at place i is the s-th token drafted in a row from place i - s."""
    head, steps = a_head(tiny, window=window), 3
    tokens, features = a_text(14)
    wanted = all_at_once(head, tokens, features, steps)
    for start in (0, 1, 6, 13 - steps):
        drafting = ByHand(head, tokens)
        guess = [drafting.row(feature) for feature in features[: start + 1]][-1]
        torch.testing.assert_close(guess, wanted[0][start], atol=1e-4, rtol=0)
        for step in range(1, steps):
            guess = drafting.row(guess)
            torch.testing.assert_close(guess, wanted[step][start + step], atol=1e-4, rtol=0)


def test_a_new_head_of_all_its_targets_layers_thinks_what_the_target_thinks(
    tiny: TorchTarget,
) -> None:
    """Until it is fitted to read features, it is the target without the text's first token."""
    head = new_head(tiny.files.folder, np.arange(200), Recipe((0, 1, 2), reads=(0, 2)))
    tokens, features = a_text(20)
    (predicted,) = all_at_once(head, tokens, features, 1)
    target = torch.from_numpy(tiny.features([tokens[1:].numpy()])[0])
    torch.testing.assert_close(predicted, target, atol=1e-4, rtol=0)
    logits = tiny._model(tokens[None, 1:]).logits[0, :, :200]
    torch.testing.assert_close(head.logits(predicted), logits, atol=1e-4, rtol=0)


def test_a_new_head_has_the_layers_that_the_recipe_names(tiny: TorchTarget) -> None:
    head = new_head(tiny.files.folder, np.array([3, 7]), Recipe((2, 0), reads=(1,)))
    layers = tiny._model.model.layers
    for ours, theirs in zip(head.layers, (layers[2], layers[0]), strict=True):
        for name, short in {"self_attn.v_proj": "v_proj", "mlp.down_proj": "down_proj"}.items():
            assert torch.equal(
                ours.get_submodule(short).get_parameter("weight"), theirs.get_submodule(name).weight
            )
    assert torch.equal(head.output, tiny._model.lm_head.weight[[3, 7]])
    assert not head.reads["1"].get_parameter("weight").any()


def test_a_head_comes_back_from_its_file_within_a_rounding_to_int8_or_damage_is_told(
    tiny: TorchTarget, tmp_path: Path
) -> None:
    head, tokens = a_head(tiny), np.arange(100, 300)
    weights = {name: value.numpy() for name, value in head.state_dict().items()}
    write_head(tmp_path / HEAD, head.shape, weights, tokens, "its target")
    file = read_head(tmp_path / HEAD)
    assert file.shape == head.shape
    assert np.array_equal(file.tokens, tokens)
    assert file.weights.keys() == weights.keys()
    for name, value in weights.items():
        scale = np.abs(value).max(-1, keepdims=True) / 127 if value.ndim == 2 else 0.0
        assert (np.abs(file.weights[name] - value) <= scale / 2 + 1e-6).all(), name
    whole_file = (tmp_path / HEAD).read_bytes()
    assert len(whole_file) < 1.5 * sum(value.size for value in weights.values())
    for kept in (0, 100, -1):
        (tmp_path / HEAD).write_bytes(whole_file[:kept])
        with pytest.raises(DerbyError, match="not a trained draft"):
            read_head(tmp_path / HEAD)


def test_the_head_drafts_the_answers_most_frequent_tokens(tmp_path: Path) -> None:
    tokens = np.array([9, 9, 9, 9, 5, 5, 7, 7, 7, 3], dtype=np.uint16)
    kinds = np.array([GIVEN, QUESTION, GIVEN, QUESTION, GREEDY, SAMPLED, *[GREEDY] * 3, SAMPLED])
    shard = Shard(tmp_path / "shard-00000.npz")
    np.savez_compressed(shard.path, tokens=tokens, kind=kinds, offsets=np.array([0, 10]))
    assert frequent_tokens([shard], 2, 12).tolist() == [5, 7]
    assert frequent_tokens([shard, shard], 3, 12).tolist() == [3, 5, 7]


def test_a_shard_gives_back_its_texts_and_the_features_of_each(data: Path) -> None:
    for shard in shards_in(data):
        with np.load(shard.path) as stored:
            tokens, kinds, offsets = stored["tokens"], stored["kind"], stored["offsets"]
        texts = list(shard.texts())
        assert tokens.dtype == np.uint16
        assert [len(text.tokens) for text in texts] == np.diff(offsets).tolist()
        assert np.array_equal(np.concatenate([text.tokens for text in texts]), tokens)
        assert np.array_equal(np.concatenate([text.answers for text in texts]), kinds >= GREEDY)
        assert all(text.features.shape == (len(text.tokens), 32) for text in texts)


def test_greedy_answers_are_the_targets_own_choices_and_features_are_its_own(
    tiny: TorchTarget, data: Path
) -> None:
    """However conversations left the batch before: a cache row out of place would show here."""
    judged = 0
    for shard in shards_in(data):
        with np.load(shard.path) as stored:
            kinds, offsets = stored["kind"], stored["offsets"]
        for text, a, b in zip(shard.texts(), offsets[:-1], offsets[1:], strict=True):
            output = tiny._model(torch.from_numpy(text.tokens)[None], output_hidden_states=True)
            best = output.logits[0].argmax(1).numpy()
            greedy = np.flatnonzero(kinds[a:b] == GREEDY)
            assert np.array_equal(text.tokens[greedy], best[greedy - 1])
            judged += len(greedy)
            own = output.hidden_states[-1][0].detach().bfloat16().float().numpy()
            stored_states = (text.features.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_allclose(stored_states, own, rtol=1 / 128, atol=1e-5)
    assert judged > 50


def test_an_interrupted_synthesis_goes_on_with_the_same_bytes(
    tiny: TorchTarget, data: Path, tmp_path: Path
) -> None:
    first, second = (shard.path for shard in shards_in(data))
    shutil.copy(first, tmp_path)
    (tmp_path / f"{second.name}.partial").write_bytes(b"cut off")
    wanted = answers_in(data)
    said: list[str] = []
    shards = synthesise(tmp_path, wanted, tiny, said.append, CAPS)
    assert [shard.path.name for shard in shards] == [first.name, second.name]
    assert (tmp_path / second.name).read_bytes() == second.read_bytes()
    assert first.read_bytes() != second.read_bytes()
    (told,) = said
    assert second.name in told
    assert f"{wanted} of {wanted}" in told
    assert not list(tmp_path.glob("*.partial"))


def test_conversations_end_where_their_time_does(tiny: TorchTarget) -> None:
    """They begin like those that had the time to end, and none of them is empty."""
    whole_ones = conversations(tiny, SEED, CAPS)
    cut = conversations(tiny, SEED, CAPS, until=0)
    assert any(len(a.tokens) < len(b.tokens) for a, b in zip(cut, whole_ones, strict=True))
    for a, b in zip(cut, whole_ones, strict=True):
        assert a.tokens
        assert a.tokens == b.tokens[: len(a.tokens)]
        assert len(a.kinds) == len(a.tokens)


def test_another_models_conversations_are_not_learnt_from(
    tiny: TorchTarget, tmp_path: Path
) -> None:
    """A draft was fitted to one model's hidden states, and said that it was another one's."""
    (tmp_path / "target").write_text("another")
    with pytest.raises(DerbyError, match="conversations of another model"):
        synthesise(tmp_path, 1, tiny, print, CAPS)


def test_one_folder_takes_one_run_at_a_time(tiny: TorchTarget, tmp_path: Path) -> None:
    another = FileLock(tmp_path / "lock", timeout=0)
    with alone_in(tmp_path), alone_in(tmp_path):
        with pytest.raises(Timeout):
            another.acquire()
        with pytest.raises(DerbyError, match="context"):
            synthesise(tmp_path, 1, tiny, print, Caps(text=513))
    with another, pytest.raises(DerbyError, match="Another run"), alone_in(tmp_path):
        pass


def test_a_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), whole(tmp_path / "a") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert not (tmp_path / "a").exists()


def test_conversations_follow_the_template_and_their_seed(template: Template) -> None:
    target: Any = NoModel(template)
    caps = replace(CAPS, batch=40)
    chats, again = conversations(target, SEED, caps), conversations(target, SEED, caps)
    assert [chat.tokens for chat in chats] == [chat.tokens for chat in again]
    assert [chat.tokens for chat in chats] != [c.tokens for c in conversations(target, 0, caps)]
    fast, turns = chat_model.tokenizer(), []
    for chat in chats:
        kinds, text = np.array(chat.kinds), str(fast.decode(chat.tokens))
        assert len(chat.tokens) == len(kinds) <= caps.text
        assert text.startswith("<|im_start|>system\n")
        turns.append(text.count("<|im_start|>assistant\n"))
        runs = np.split(kinds, np.flatnonzero(np.diff(kinds)) + 1)
        answer = GREEDY if GREEDY in kinds else SAMPLED
        assert [run[0] for run in runs if run[0]] == [QUESTION, answer] * turns[-1]
        assert all(len(run) <= caps.answer for run in runs if run[0] == answer)
        assert not (set(np.array(chat.tokens)[kinds == QUESTION]) & {START, PAD})
    assert set(turns) == {1, 2}
    assert {GREEDY, SAMPLED} <= {kind for chat in chats for kind in chat.kinds}


class NoModel:
    """In place of a target: what comes next depends on the last token alone."""

    together = 5
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(2)) * 2

    def __init__(self, template: Template) -> None:
        self.template = template

    def forget(self) -> None: ...

    def step(self, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> Tensor:
        assert len(tokens) == len(rows)
        return self.table[torch.from_numpy(tokens[:, -1])]


def test_shares_of_conversations_are_those_that_were_meant(template: Template) -> None:
    rng, plain = np.random.default_rng(5), template.opening("", "")
    chats = [Chat(template, rng, Caps()) for _ in range(2000)]

    def share(meant: Callable[[Chat], bool]) -> float:
        return sum(map(meant, chats)) / len(chats)

    assert share(lambda chat: chat.queue[: len(plain)] == plain) == pytest.approx(0.9, abs=0.03)
    assert share(lambda chat: chat._cap == 600) == pytest.approx(0.22, abs=0.04)
    assert share(lambda chat: chat._answering == GREEDY) == pytest.approx(0.60, abs=0.05)
    assert share(lambda chat: chat._more) == pytest.approx(0.3, abs=0.05)


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
    "broken",
    [
        "{{ messages[0]['content'] }}",
        "{{ raise_exception('no system turns') }}",
        CHATML.replace("<|im_end|>", "##"),
    ],
)
def test_a_template_that_cannot_be_taken_apart_is_refused(broken: str) -> None:
    fast = chat_model.tokenizer()
    fast.chat_template = broken
    with pytest.raises(DerbyError, match="chat template"):
        template_of(fast)


def test_a_turn_ends_at_its_token_its_cap_or_the_texts_end(template: Template) -> None:
    caps = Caps(1, 6, 6, 5, 400)
    chat = Chat(template, np.random.default_rng(1), caps)
    assert chat.phase == QUESTION
    assert set(chat.barred) == {START, END, PAD}
    write(chat, [50] * 4)
    assert set(chat.barred) == {START, PAD}
    write(chat, [50] * 2)  # the cap
    assert chat.queue == [END, *template.to_answer]
    assert chat.phase in (GREEDY, SAMPLED)
    chat._more = True
    write(chat, [60, 61, END])
    assert (chat.queue[: len(template.to_question)], chat.phase) == (
        list(template.to_question),
        QUESTION,
    )
    write(chat, [50] * 6)
    write(chat, [60, PAD])  # astray
    assert chat.done
    assert chat.tokens[-1] == PAD


def test_a_full_conversation_gets_no_more_than_the_token_that_ends_it(template: Template) -> None:
    for question in range(1, 12):  # the room for it; up to 6 tokens of it are wanted
        room = len(Chat(template, np.random.default_rng(question), Caps()).queue) + question
        chat = Chat(template, np.random.default_rng(question), Caps(1, 6, 6, 50, room))
        while not chat.done:
            write(chat, [50])
        assert len(chat.tokens) >= room
        assert np.count_nonzero(chat.kinds[room:]) <= 1


def write(chat: Chat, tokens: list[int]) -> None:
    chat.force(len(chat.queue))
    for token in tokens:
        chat.take(token)


@pytest.mark.parametrize("draws", [1, 3])
def test_questions_are_drawn_from_the_nucleus_and_answers_from_everything(
    template: Template, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of probabilities 0.6, 0.36 and 0.04, a question never takes the last, an answer does,
    however many draws are made at a time.
    """
    monkeypatch.setitem(DRAWS, "cpu", draws)
    logits = torch.full((400, VOCABULARY), -torch.inf)
    logits[:, [70, 80, 90]] = torch.tensor([0.6, 0.36, 0.04]).log()
    chats = [Chat(template, np.random.default_rng(1), Caps()) for _ in range(400)]
    for chat in chats:
        chat._asking = 1.0
    noise = torch.Generator().manual_seed(0)
    asked = np.bincount(draw(logits.clone(), chats, noise), minlength=100)
    assert asked[90] == 0
    assert asked[70] / 400 == pytest.approx(0.6 / 0.96, abs=0.1)
    for chat in chats:
        chat.phase = SAMPLED
    cooled = torch.tensor([0.6, 0.36, 0.04]).pow(1 / 0.7)
    shares = (cooled / cooled.sum()).tolist()
    answered = np.bincount(draw(logits.clone(), chats, noise), minlength=100)
    assert answered[[70, 80, 90]] / 400 == pytest.approx(shares, abs=0.1)
    assert answered[90] > 0
    for chat in chats:
        chat.phase = GREEDY
    assert set(draw(logits.clone(), chats, noise)) == {70}


def test_openings_are_beginnings_and_no_finished_tasks() -> None:
    """Whole questions would make the data ours instead of the target's."""
    given = openings()
    for entries in (given.systems, given.starters, given.long, given.follow):
        assert len(set(entries)) == len(entries) > 10
        assert all(entry and entry == entry.rstrip(" ") and len(entry) < 130 for entry in entries)
    assert all(len(entry) < 60 for entry in (*given.starters, *given.follow))


def test_fitting_makes_a_head_right_more_often(
    tiny: TorchTarget, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()  # so many batches on any machine: a second passes whenever the time is asked
    monkeypatch.setattr(fitting, "monotonic", lambda: next(ticks))
    shards = shards_in(data)
    tokens = frequent_tokens(shards, RECIPE.vocabulary, VOCABULARY)
    head = new_head(tiny.files.folder, tokens, RECIPE)
    batch = next(fitting.batches(shards, RECIPE, np.random.default_rng(0)))
    before, loss = evaluate(head, shards, RECIPE, 2), total_loss(head, batch)
    list(fitting.fit(head, shards, RECIPE, 250))
    after = evaluate(head, shards, RECIPE, 2)
    assert after[0] > before[0] + 0.3
    assert after[1] > before[1] + 0.3
    assert total_loss(head, batch) < 0.8 * loss


@torch.no_grad()
def total_loss(head: TorchHead, batch: list[Text]) -> float:
    return sum(float(lesson.loss) for lesson in lessons(head, batch, 2))


def answers_in(folder: Path) -> int:
    """Tokens of answers in its shards."""
    return sum(int(shard.answer_counts(VOCABULARY).sum()) for shard in shards_in(folder))


def test_training_keeps_what_is_there_and_reports_the_held_out_shard(
    tiny: TorchTarget, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(data, folder)
    wanted = answers_in(data)
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*")}
    report = train(folder, Work(wanted, 0.5, RECIPE), tiny, print, CAPS)
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*")} == kept
    assert json.loads((folder / REPORT).read_text()) == json.loads(json.dumps(report))
    assert report["data"]["trained"]["conversations"] == CAPS.batch
    sizes = report["data"]["held out"]
    assert sizes["tokens"] == sum(len(text.tokens) for text in shards_in(folder)[0].texts())
    assert report["head"]["bytes"] == (folder / HEAD).stat().st_size
    first = read_head(folder / HEAD)
    head = new_head(tiny.files.folder, first.tokens, RECIPE)
    head.load_state_dict({name: torch.from_numpy(w) for name, w in first.weights.items()})
    hits = evaluate(head, shards_in(folder)[:1], RECIPE, 4)
    assert report["right at each draft step"] == [round(hit, 4) for hit in hits]
    resumed = train(folder, Work(wanted, 1e-9, RECIPE, resume=True), tiny, print, CAPS)
    assert resumed["right at each draft step"] == pytest.approx(hits, abs=0.1)
    anew = train(folder, Work(wanted, 1e-9, RECIPE), tiny, print, CAPS)
    assert anew["head"]["sha256"] != resumed["head"]["sha256"]


def test_a_run_that_cannot_train_says_why(tiny: TorchTarget, tmp_path: Path) -> None:
    with pytest.raises(DerbyError, match="held out"):
        train(tmp_path / "a", Work(1, 1, RECIPE), tiny, print, CAPS)
    with pytest.raises(DerbyError, match="layer 29"):
        train(tmp_path / "b", Work(1, 1, Recipe()), tiny, print, CAPS)
    assert recipe_for(tiny).sources == (0, 1, 2)


@pytest.mark.thorough
@pytest.mark.model
def test_the_built_in_model_writes_on_openvino_what_its_features_say(tmp_path: Path) -> None:
    """In bf16 near ties fall either way, so nearly all greedy tokens are asked for."""
    target = OpenVINOTarget("built-in", model_files("built-in", print), print)
    caps = Caps(batch=4, question=12, long_question=12, answer=24, text=400)
    (shard,) = synthesise(tmp_path, 1, target, print, caps)
    shard.add_features(target.features)
    with np.load(shard.path) as stored:
        tokens, greedy = stored["tokens"], np.flatnonzero(stored["kind"] == GREEDY)
    features = (np.load(shard.features_path).astype(np.uint32) << 16).view(np.float32)
    output = fitting.embeddings(target.files.folder)[1].numpy()
    best = (features[greedy - 1] @ output.T).argmax(1)
    assert len(greedy) > 40
    assert (best == tokens[greedy]).mean() > 0.9
