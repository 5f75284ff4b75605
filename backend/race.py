"""A race: one request, several strategies, one target model; and how it is run."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from backend.caches import Caches
from backend.clock import Clock
from backend.constraints.base import Constraint, NullConstraint
from backend.constraints.compiler import GrammarCompiler
from backend.context import Bounds
from backend.decode import Parts, decode
from backend.drafters.base import Drafter, NullDrafter
from backend.drafters.draft_model import DraftModel
from backend.drafters.lookahead import Lookahead
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines import Engines
from backend.engines.base import Engine
from backend.events import Event, Failed, Finished, Prepared, Preparing, Saved, Started
from backend.prefixes import PrefixStore
from backend.program import Program, is_program, parse_program
from backend.records import record_of
from backend.sampling import Sampler
from backend.schedule import Lane, explain, interleave
from backend.slots import Way, run_program, slot_grammars
from backend.snapshots import Snapshot, default_folder
from backend.strategies import (
    SCOPES,
    SESSION,
    DraftModelDrafting,
    LookaheadDrafting,
    LookupDrafting,
    Strategy,
    draft_spec,
)
from backend.text import require_same_tokenizer
from backend.types import DerbyError, Earlier, ModelSpec, Request

MAX_COLUMNS = 12

#: First tokens that a context shift keeps at least: attention leans on them (arXiv 2309.17453).
SINK = 4


@dataclass(frozen=True, slots=True)
class Race:
    request: Request
    columns: tuple[Strategy, ...]
    target: ModelSpec = field(default_factory=ModelSpec)
    earlier: tuple[Earlier, ...] = ()  # what each column had written already; (): nothing
    scope: str = ""  # whose caches may be used and are kept; "": nobody's
    save: bool = False  # write no more, but save each column's state to disk

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise DerbyError(
                f"{len(self.columns)} columns were chosen; a race has 1 to {MAX_COLUMNS}."
            )


def run_race(
    race: Race, engines: Engines, emit: Callable[[Event], None], stopped: Callable[[], bool]
) -> None:
    """Run a race to its end or until `stopped()`, emitting every event.

    Models are loaded first, each once, off every clock. Raises DerbyError if the target cannot be.
    """
    found: dict[ModelSpec, Engine | Exception] = {}

    def load(spec: ModelSpec) -> Engine:
        if spec not in found:
            try:
                found[spec] = engines.get(spec, lambda text: emit(Preparing(text)))
            except Exception as error:
                found[spec] = error
        engine = found[spec]
        if isinstance(engine, Exception):
            raise engine
        return engine

    target = load(race.target)
    for strategy in race.columns:
        if isinstance(strategy.drafting, DraftModelDrafting):
            with suppress(Exception):  # its own column will tell
                load(draft_spec(target.spec, strategy.drafting.draft))
    lanes: list[Lane] = []
    for index in range(len(race.columns)):
        clock = Clock(target.synchronize)
        column = _Column(index, race, target, load, clock, engines.prefixes)
        lanes.append(Lane(index, column.run(), clock))
    for event in interleave(lanes, stopped):
        emit(event)


def run_to_end(
    race: Race, engines: Engines, emit: Callable[[Event], None], stopped: Callable[[], bool]
) -> None:
    """`run_race` that never raises: an error fails whichever columns have not ended yet."""
    running = dict.fromkeys(range(len(race.columns)))

    def tell(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            running.pop(event.column, None)
        emit(event)

    try:
        run_race(race, engines, tell, stopped)
    except Exception as error:
        sentence = explain(error)
        for column in running:
            emit(Failed(column, sentence))


class _Column:
    """One column from its parts to its last event."""

    def __init__(
        self,
        index: int,
        race: Race,
        target: Engine,
        load: Callable[[ModelSpec], Engine],
        clock: Clock,
        store: PrefixStore,
    ) -> None:
        self._index = index
        self._race = race
        self._strategy = race.columns[index]
        self._target = target
        self._load = load
        self._clock = clock
        earlier = race.earlier[index] if race.earlier else Earlier()
        scope = self._strategy.scope
        file = "" if scope in SCOPES or earlier.tokens else scope
        snapshot = earlier.snapshot or file
        borrow = bool(earlier.tokens) or scope == SESSION
        # A column without a cache has none to keep.
        self._caches = Caches(store, race.scope * self._strategy.cache, borrow, snapshot)
        self._earlier = earlier
        self._compiled = 0.0  # seconds that the grammar took
        self._grammars = GrammarCompiler(target.tokenizer)

    def run(self) -> Iterator[Event]:
        request, strategy, tokenizer = self._race.request, self._strategy, self._target.tokenizer
        file = self._caches.load()
        program = parse_program(request.prompt) if is_program(request.prompt) else None
        prompt = self._prompt(program)
        earlier = self._resumed(file, prompt, program)
        context = earlier.context(prompt)
        bounds = self._bounds(len(prompt))
        if self._race.save:
            yield from self._save(prompt, context, earlier)
            return
        yield Started(self._index, len(prompt), str(self._race.target))
        if program is not None:
            # Made once a model, and so no cost of this column's.
            self._grammars.prepare(*slot_grammars(program))
            tokenizer.extending(0)
        constraint = self._constraint()
        sampler = Sampler(request.sampling)
        with ExitStack() as opened:
            session, held = self._caches.open(self._target, "target", context, file, self._clock)
            opened.callback(session.close)
            drafter = self._drafter(sampler, context, file)
            opened.callback(drafter.close)
            if self._clock.seconds:
                yield Prepared(self._index, len(held), self._clock.seconds, self._compiled)
            parts = Parts(
                session,
                tokenizer,
                sampler,
                self._clock,
                drafter,
                constraint,
                strategy.cache,
                strategy.limit,
                bounds,
            )
            if program is None:
                yield from decode(self._index, prompt, request, parts, earlier)
            else:
                way = Way(strategy.restart, strategy.single)
                yield from run_program(
                    self._index, program, prompt, request, parts, self._grammars.compile, way
                )

    def _prompt(self, program: Program | None) -> list[int]:
        """The prompt's tokens, or those in front of a program's own text."""
        request, encode = self._race.request, self._target.tokenizer.encode
        if program is None:
            return encode(request.prompt, chat=request.chat)
        return encode(program.user, chat=True) if program.user else encode("", chat=False)

    def _resumed(
        self, file: Snapshot | None, prompt: Sequence[int], program: Program | None
    ) -> Earlier:
        """What the answer goes on from, read from the file if that is where it is."""
        earlier = self._earlier
        if earlier.snapshot and file is not None:
            if list(file.prompt) != list(prompt):
                raise DerbyError(
                    f"Snapshot {earlier.snapshot} holds a prompt of {len(file.prompt)} tokens that "
                    f"this model's tokenizer does not make of its text (it makes {len(prompt)}): "
                    "load it with the model it was saved with."
                )
            shifts = tuple((at, sink, drop) for at, sink, drop in file.record.get("shifts", ()))
            earlier = replace(earlier, tokens=file.answer, shifts=shifts)
        if program is not None and (earlier.tokens or self._race.save):
            raise DerbyError(
                "A program cannot be continued or saved in the middle of its slots: run it again."
            )
        return earlier

    def _bounds(self, prompt: int) -> Bounds:
        """Raises DerbyError if the prompt alone fills the context."""
        request, overhang = self._race.request, self._strategy.overhang
        limit = request.context or self._target.capabilities.max_context
        bounds = Bounds(
            min(limit, self._target.capabilities.max_context),
            overhang,
            request.shift,
            max(SINK, self._system()),
        )
        if bounds.room(prompt) < 1:
            ahead = f", of which {overhang} serve to look ahead" if overhang else ""
            raise DerbyError(
                f"The prompt has {prompt:,} tokens; the context holds {bounds.positions:,}{ahead}. "
                "Shorten the prompt or raise the context limit."
            )
        return bounds

    def _system(self) -> int:
        """How many first tokens all prompts share: those of the chat template's system prompt."""
        if not self._race.request.chat:
            return 0
        pair = (self._target.tokenizer.encode(text, chat=True) for text in ("a", "1"))
        alike = itertools.takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False))
        return sum(1 for _ in alike)

    def _constraint(self) -> Constraint:
        if self._strategy.grammar is None:
            return NullConstraint()
        self._grammars.prepare(self._strategy.grammar)
        with self._clock.step(), self._clock.part("mask"):
            constraint = self._grammars.compile(self._strategy.grammar)
        self._compiled = self._clock.seconds
        return constraint

    def _drafter(self, sampler: Sampler, context: Sequence[int], file: Snapshot | None) -> Drafter:
        match self._strategy.drafting:
            case LookupDrafting(k, ngram):
                return PromptLookup(k, ngram)
            case LookaheadDrafting(window, level, guesses, seeded):
                if not self._target.capabilities.tree:
                    raise DerbyError(
                        f"Lookahead needs tree attention, which {self._target.spec} does not have."
                    )
                return Lookahead(window, level, guesses, seeded=seeded, seed=sampler.sampling.seed)
            case DraftModelDrafting(k, draft):
                spec = draft_spec(self._target.spec, draft)
                engine = self._load(spec)
                require_same_tokenizer(self._target.tokenizer, engine.tokenizer, str(spec))
                session, held = self._caches.open(engine, "draft", context, file, self._clock)
                return DraftModel(session, sampler, k, self._target.tokenizer.eos_ids, held)
            case _:
                return NullDrafter()

    def _save(
        self, prompt: Sequence[int], context: Sequence[int], earlier: Earlier
    ) -> Iterator[Event]:
        """Write what the store holds of this column to disk."""
        race, strategy = self._race, self._strategy
        if not strategy.cache:
            raise DerbyError(f"{strategy.title} keeps no cache: save another column.")
        yield Started(self._index, len(prompt), str(race.target))
        caches = {"target": self._caches.stored(self._target, context, len(context) - 1)}
        if isinstance(strategy.drafting, DraftModelDrafting):
            draft = self._load(draft_spec(self._target.spec, strategy.drafting.draft))
            caches["draft"] = self._caches.stored(draft, context, 1)
        record = record_of(race.request, strategy, race.target)
        record["shifts"] = [list(shift) for shift in earlier.shifts]
        snapshot = Snapshot(record, tuple(prompt), earlier.tokens, caches)
        yield Saved(self._index, default_folder().save(snapshot))
        yield Finished(self._index, "stopped", [])
