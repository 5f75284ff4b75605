"""Visitors in Chromium for an hour, by real clicks, while workers are killed.

Each visitor has a window of their own and does at random what people do: run, stop, continue, a
grammar, save and load, delete, reload, close the tab. Columns that keep the text must show one
text.
"""

import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from browser import Visitor, launched
from playwright.sync_api import Browser, Error, Locator, Page
from soak.report import Figure, Result, at_least, at_most, curve, none_of, noted, result
from soak.server import Server, private_cache

PROMPTS = (
    "Name three rivers of Europe.",
    "Repeat: one two three, one two three, one two",
    "Why does bread rise?",
    "Write a line of Python that adds two numbers.",
    "List the colours of the rainbow.",
)

LINEUPS = (
    ("kv", "speculative", "lookahead"),
    ("stateless", "kv", "lookup"),
    ("kv", "speculative", "lookup", "lookahead"),
)

#: Titles of columns that write what KV reuse writes.
LOSSLESS = ("KV reuse", "Speculative", "Lookahead", "Prompt lookup")

#: A grammar that every model can follow to its end.
GRAMMAR = 'start: ("yes" | "no") ", " /[a-z]{3,8}/'

#: What a column says when its worker was killed.
DIED = re.compile(r"worker")

#: Seconds for one click or look; for a race, its wait included; and between looks at memory.
CLICK, RACE, LOOK = 30.0, 300.0, 15.0

#: Windows that are opened, one after another, before a visitor gives up.
TRIES = 5

#: What the browser itself says of requests that a reload or a closed tab cuts off.
CUT_OFF = re.compile(r"net::ERR_(ABORTED|NETWORK_CHANGED|INCOMPLETE_CHUNKED_ENCODING)")

#: All that is read of a board, in one look.
_READ = """() => {
  const board = document.querySelector(".dd-board");
  return {
    phase: board ? board.dataset.phase : "",
    status: document.querySelector(".dd-status")?.textContent || "",
    alert: document.querySelector(".dd-alert")?.textContent || "",
    columns: [...document.querySelectorAll(".dd-card")].map((card) => ({
      title: card.querySelector("h3").textContent,
      state: card.dataset.state,
      text: [...card.querySelectorAll(".dd-text span")].map((s) => s.textContent).join(""),
      problem: card.querySelector(".dd-problem")?.textContent || "",
    })),
  };
}"""

Board = Mapping[str, Any]


def read_board(page: Page) -> Board:
    """What a page shows of its race."""
    return page.evaluate(_READ)


@dataclass
class Seat:
    """One visitor: the tab, what was done and seen, and since when a race is awaited."""

    number: int
    browser: Browser
    address: str
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    awaited: float = 0.0
    saving: float = 0.0
    died: bool = False
    together: bool = True  # whether the columns began at the same token
    snapshot: str = ""

    def enter(self) -> None:
        """Open the page in a new window."""
        self.context = self.browser.new_context(viewport={"width": 1280, "height": 900})
        self.visitor = Visitor(self.context, self.address)
        self.visitor.page.set_default_timeout(CLICK * 1000)
        self.snapshot = ""
        self._done("entered")

    def leave(self) -> None:
        self.complaints += [c for c in self.visitor.complaints if not CUT_OFF.search(c)]
        self.context.close()
        self.awaited = self.saving = 0.0

    @property
    def page(self) -> Page:
        return self.visitor.page

    def board(self) -> Board:
        return read_board(self.page)

    def act(self, chance: random.Random, model: str) -> None:
        """Do one thing, fit for what the board shows."""
        board = self.board()
        if self.saving:
            self.look_saved()
            return
        if self.awaited and board["phase"] == "ended":
            self._judge(board)
        if self.awaited and board["alert"]:
            self.counts["refused in a sentence"] += 1
            self.awaited = 0.0
        if self.awaited:
            self._wait(chance, board)
        else:
            self._choose(chance, board, model)

    def _wait(self, chance: random.Random, board: Board) -> None:
        if time.monotonic() - self.awaited > RACE:
            self.lost.append(
                f"visitor {self.number}: no end within {RACE:g} s: {board['phase']}, "
                f"{board['status']!r}"
            )
            self.awaited = 0.0
        drawn = chance.random()
        if drawn < 0.02:
            self.visitor.stop()
            self._done("stopped")
        elif drawn < 0.025:
            self.reload()
        elif drawn < 0.03:
            self.leave()
            self.enter()

    def _choose(self, chance: random.Random, board: Board, model: str) -> None:
        ended = board["phase"] == "ended"
        acts: list[tuple[float, Callable[[random.Random, str], None]]] = [
            (8, self.run),
            (4 if ended else 0, self.go_on),
            (2, self.run_grammar),
            (2 if ended else 0, self.save),
            (3 if self.snapshot else 0, self.load),
            (1 if self.snapshot else 0, self.delete),
            (1, lambda *_: self.reload()),
            (1, lambda *_: self.reenter()),
        ]
        chance.choices([act for _, act in acts], [weight for weight, _ in acts])[0](chance, model)

    def run(self, chance: random.Random, model: str) -> None:
        self.together = True
        self.visitor.columns(*chance.choice(LINEUPS))
        self.visitor.ask(chance.choice(PROMPTS), tokens=chance.randint(8, 64), model=model)
        self._begun("run")

    def go_on(self, chance: random.Random, model: str) -> None:
        self.together = False  # where they were stopped
        self.page.locator("#continue").click()
        self._begun("continued")

    def run_grammar(self, chance: random.Random, model: str) -> None:
        self.visitor.columns("kv", "grammar:grammar=own")
        self.visitor.tab("Own grammar")
        self.page.get_by_label("My own grammar").fill(GRAMMAR)
        self.visitor.ask("Yes or no, and a word?", tokens=24, model=model)
        self._begun("run with a grammar")

    def save(self, chance: random.Random, model: str) -> None:
        """Press Save; what comes of it is seen later, for it waits in line."""
        self.visitor.tab("Save")
        self._name.fill("")
        self.page.locator("#save").click()  # which empties the answer
        self.saving = time.monotonic()

    def look_saved(self) -> None:
        """Has the column been saved, or a sentence said why not?"""
        name, answer = self._name.input_value(), self._answer
        if name or answer:
            self.snapshot = name
            self._done("saved" if name else f"not saved: {answer:.80}")
            self.saving = 0.0
        elif time.monotonic() - self.saving > RACE:
            self.lost.append(f"visitor {self.number}: no answer to Save within {RACE:g} s")
            self.saving = 0.0

    @property
    def _name(self) -> Locator:
        return self.page.locator("#snapshot input, #snapshot textarea").first

    @property
    def _answer(self) -> str:
        return self.page.locator("#told input, #told textarea").first.input_value()

    def load(self, chance: random.Random, model: str) -> None:
        self.visitor.tab("Save")
        self._name.fill(self.snapshot)
        self.page.locator("#load").click()
        self._begun("loaded")

    def delete(self, chance: random.Random, model: str) -> None:
        self.visitor.tab("Save")
        self._name.fill(self.snapshot)
        self.page.locator("#delete").click()
        self.snapshot = ""
        self._done("deleted")

    def reload(self) -> None:
        self.page.reload()
        self.page.wait_for_selector(".dd-card")
        self.awaited = self.saving = 0.0
        self._done("reloaded")

    def reenter(self) -> None:
        self.leave()
        self.enter()

    def recover(self) -> None:
        """Begin anew in another window, after a click that found nothing."""
        with contextlib.suppress(Error):
            self.leave()
        for _ in range(TRIES - 1):
            try:
                self.enter()
            except (Error, AssertionError) as error:  # on a machine that is far too busy
                self.lost.append(f"visitor {self.number}, entering: {error!s:.300}")
            else:
                return
        self.enter()

    def _begun(self, what: str) -> None:
        self._done(what)
        self.awaited = time.monotonic()
        # The board of an earlier race is no end of this one.
        with contextlib.suppress(Error):
            self.page.wait_for_function(
                "() => document.querySelector('.dd-board').dataset.phase !== 'ended' "
                "|| document.querySelector('.dd-alert').textContent !== ''",
                timeout=1500,
            )

    def _done(self, what: str) -> None:
        self.counts[what] += 1

    def _judge(self, board: Board) -> None:
        """Is what an ended race shows right?"""
        self.awaited = 0.0
        self.counts["races ended"] += 1
        columns = board["columns"]
        for column in columns:
            if DIED.search(column["problem"]):
                self.died = True
                self.counts["columns whose worker died"] += 1
            elif column["state"] == "failed":
                self.failures.append(
                    f"visitor {self.number}: {column['title']} failed: {column['problem']}"
                )
        kept = [c for c in columns if c["title"] in LOSSLESS and c["state"] != "failed"]
        longest = max((c["text"] for c in kept), key=len, default="")
        for column in kept:
            whole = self.together and all(c["state"] == "done" for c in kept)
            same = column["text"] == longest if whole else longest.startswith(column["text"])
            if not same:
                self.differing.append(
                    f"visitor {self.number}: {column['title']} shows {column['text'][-80:]!r}, "
                    f"another {longest[-80:]!r}"
                )


def browsing(
    visitors: int = 5,
    seconds: float = 3600.0,
    kills: int = 2,
    *,
    model: str = "built-in",
    seed: int = 0,
    options: Sequence[str] = (),
) -> Result:
    """Have so many visitors in Chromium for so long, and kill the worker so often."""
    chance = random.Random(seed)
    launch = ("--fake", *options) if model.startswith("fake") else options
    with (
        private_cache(filled=True) as cache,
        Server(*launch, cache=cache) as server,
        launched() as browser,
    ):
        seats = [Seat(number, browser, server.address) for number in range(visitors)]
        for seat in seats:
            seat.enter()
        memory, killed = _stay(server, seats, chance, model, seconds, kills)
        for seat in seats:
            seat.leave()
        return _result(server, seats, memory, killed, f"{seconds:g} s on {model}, seed {seed}")


def _stay(
    server: Server,
    seats: Sequence[Seat],
    chance: random.Random,
    model: str,
    seconds: float,
    kills: int,
) -> tuple[list[tuple[float, int, int]], int]:
    """Let the visitors act: memory over time, and how many workers were killed."""
    begun, killed = time.monotonic(), 0
    memory: list[tuple[float, int, int]] = []
    # On a busy machine no race may have ended by then: one is waited for.
    while (now := time.monotonic() - begun) < seconds or (
        now < seconds + RACE and not any(seat.counts["races ended"] for seat in seats)
    ):
        if not memory or now - memory[-1][0] >= min(LOOK, seconds / 10):
            memory.append((now, *server.rss()))
        racing = any(seat.awaited and _phase(seat) == "racing" for seat in seats)
        if killed < kills and now > seconds * (killed + 1) / (kills + 1) and racing:
            with contextlib.suppress(psutil.NoSuchProcess):
                server.worker().kill()
                killed += 1
        seat = chance.choice(list(seats))
        try:
            seat.act(chance, model)
        except (Error, AssertionError) as error:
            seat.lost.append(f"visitor {seat.number}: {error!s:.300}")
            seat.recover()
        seat.page.wait_for_timeout(200)
    return memory, killed


def _phase(seat: Seat) -> str:
    with contextlib.suppress(Error):
        return seat.board()["phase"]
    return ""


def _result(
    server: Server,
    seats: Sequence[Seat],
    memory: Sequence[tuple[float, int, int]],
    killed: int,
    size: str,
) -> Result:
    counts = sum((seat.counts for seat in seats), Counter[str]())

    def every(lists: Iterable[list[str]]) -> list[str]:
        return [entry for entries in lists for entry in entries]

    complaints = every(seat.complaints for seat in seats)
    differing = every(seat.differing for seat in seats)
    lost = every(seat.lost for seat in seats)
    failures = every(seat.failures for seat in seats)
    broken = server.broken
    figures = [
        *(noted(f"{what}, times", count) for what, count in sorted(counts.items())),
        at_least("races that came to their end", counts["races ended"], 1),
        noted("workers killed", killed),
        *_figures_of(memory),
        none_of("lossless columns that differ", differing),
        none_of("races or clicks without an answer", lost),
        none_of("columns that failed for another reason than the kill", failures),
        none_of("errors on the browsers' consoles", complaints),
        none_of("tracebacks in the server's log", broken),
    ]
    saw = [
        f"visitor {seat.number}: " + ", ".join(f"{n} {what}" for what, n in seat.counts.items())
        for seat in seats
    ]
    remarks = [*saw, curve(memory), *differing, *lost, *failures, *complaints, *broken]
    return result("browser", f"{len(seats)} visitors, {size}", figures, remarks)


def _figures_of(memory: Sequence[tuple[float, int, int]]) -> list[Figure]:
    _, pages, workers = zip(*memory, strict=True)
    return [
        noted("memory of the page at the end, MB", pages[-1] / 1e6),
        noted("memory of the page at most, MB", max(pages) / 1e6),
        noted("memory of the worker at the end, MB", workers[-1] / 1e6),
        at_most("memory of the worker at most, MB", max(workers) / 1e6, 6000),
    ]
