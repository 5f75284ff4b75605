"""A race: one request, several strategies, one target model; and how it is run."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

from backend.decoding.clock import Clock
from backend.decoding.constraint import Constraint, NullConstraint
from backend.decoding.context import Bounds
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.engines.base import Engine, Session
from backend.errors import DerbyError
from backend.events import CostsKnown, Event, Failed, Finished, Prepared, Preparing, Saved, Started
from backend.grammar.grammars import GrammarCompiler
from backend.kvcache.column_caches import Caches
from backend.kvcache.snapshots import Snapshot, default_folder
from backend.kvcache.sources import (
    EARLIER_ANSWERS,
    NOBODY,
    THIS_ANSWER,
    CacheSource,
    SnapshotFile,
    Visitor,
)
from backend.programs.parser import Program, is_program, parse_program
from backend.programs.runner import ProgramMode, run_program, slot_grammars
from backend.racing.loading import Loading
from backend.racing.models import LoadedModels
from backend.racing.records import record_of
from backend.racing.schedule import Lane, explain, interleave
from backend.strategies.build import Built, DrafterInputs, OpenDraft, build_drafter
from backend.strategies.registry import CALL, SESSION, Strategy
from backend.text import require_same_tokenizer
from backend.types import AnswerSoFar, ModelSpec, Request

MAX_COLUMNS = 12

#: First tokens that a context shift keeps at least: attention leans on them (arXiv 2309.17453).
SINK = 4


@dataclass(frozen=True, slots=True)
class Race:
    request: Request
    columns: tuple[Strategy, ...]
    target: ModelSpec = field(default_factory=ModelSpec)
    earlier: tuple[AnswerSoFar, ...] = ()  # what each column had written already; (): nothing
    scope: str = ""  # whose caches may be used and are kept; "": nobody's
    save: bool = False  # write no more, but save each column's state to disk
    measure: bool = False  # find out anew, before the race, what passes cost

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise DerbyError(
                f"{len(self.columns)} columns were chosen; a race has 1 to {MAX_COLUMNS}."
            )


def run_race(
    race: Race, engines: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
) -> None:
    """Run a race to its end or until `stopped()`, emitting every event.

    Models are loaded first, each once, off every clock. Raises DerbyError if the target cannot be.
    """
    models = Loading(engines, lambda text: emit(Preparing(text)))
    target = models.engine(race.target)
    drafting = (strategy.drafting for strategy in race.columns)
    models.prepare(target, drafting, remeasure=race.measure)
    lanes: list[Lane] = []
    for index in range(len(race.columns)):
        clock = Clock(target.synchronize)
        lanes.append(Lane(index, _Column(index, race, target, models, clock).run(), clock))
    for event in interleave(lanes, stopped):
        emit(event)


def run_to_end(
    race: Race, engines: LoadedModels, emit: Callable[[Event], None], stopped: Callable[[], bool]
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


def _source(strategy: Strategy, earlier: AnswerSoFar) -> CacheSource:
    """Where a column's caches begin: what an answer goes on from comes before the setting."""
    if earlier.snapshot:
        return SnapshotFile(earlier.snapshot)
    if earlier.tokens or strategy.scope == SESSION:
        return EARLIER_ANSWERS
    return THIS_ANSWER if strategy.scope == CALL else SnapshotFile(strategy.scope)


class _Column:
    """One column from its parts to its last event."""

    def __init__(
        self,
        index: int,
        race: Race,
        target: Engine,
        models: Loading,
        clock: Clock,
    ) -> None:
        self._index = index
        self._race = race
        self._strategy = race.columns[index]
        self._target = target
        self._models = models
        self._clock = clock
        earlier = race.earlier[index] if race.earlier else AnswerSoFar()
        # A column without a cache has none to keep.
        keeps = race.scope and self._strategy.cache
        scope = Visitor(race.scope) if keeps else NOBODY
        self._caches = Caches(models.prefixes, scope, _source(self._strategy, earlier))
        self._earlier = earlier
        self._compiled = 0.0  # seconds that the grammar took
        self._grammars = GrammarCompiler(models.grammars, target.tokenizer)

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
        yield self._started(prompt)
        if program is not None:
            # Made once a model, and so no cost of this column's.
            self._grammars.prepare(*slot_grammars(program))
            tokenizer.extending(0)
        constraint = self._constraint()
        sampler = Sampler(request.sampling)
        with ExitStack() as opened:
            session, held = self._caches.open(self._target, "target", context, file, self._clock)
            opened.callback(session.close)
            built = self._build(session, sampler, context, file)
            opened.callback(built.drafter.close)
            costs = self._models.costs(self._target)
            if costs.known:
                widths, passes = list(costs.widths), list(costs.seconds)
                growth = list(costs.context_slope)
                yield CostsKnown(
                    self._index, widths, passes, costs.width_change, built.seconds, growth
                )
            if self._clock.seconds:
                yield Prepared(self._index, len(held), self._clock.seconds, self._compiled)
            parts = Parts(
                built.session,
                tokenizer,
                sampler,
                self._clock,
                built.drafter,
                constraint,
                strategy.cache,
                strategy.limit,
                bounds,
            )
            if program is None:
                yield from decode(self._index, prompt, request, parts, earlier)
            else:
                way = ProgramMode(strategy.restart, strategy.single)
                yield from run_program(
                    self._index, program, prompt, request, parts, self._grammars.compile, way
                )

    def _started(self, prompt: Sequence[int]) -> Started:
        spec, tokenizer = self._race.target, self._target.tokenizer.fingerprint
        return Started(self._index, len(prompt), str(spec), tokenizer, asdict(spec))

    def _prompt(self, program: Program | None) -> list[int]:
        """The prompt's tokens, or those in front of a program's own text."""
        request, encode = self._race.request, self._target.tokenizer.encode
        if program is None:
            return encode(request.prompt, chat=request.chat)
        return encode(program.user, chat=True) if program.user else encode("", chat=False)

    def _resumed(
        self, file: Snapshot | None, prompt: Sequence[int], program: Program | None
    ) -> AnswerSoFar:
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
        request, scratch_depth = self._race.request, self._strategy.scratch_depth
        limit = request.context or self._target.capabilities.max_context
        bounds = Bounds(
            min(limit, self._target.capabilities.max_context),
            scratch_depth,
            request.shift,
            max(SINK, self._system()),
            self._target.capabilities.length_thresholds,
        )
        if bounds.room(prompt) < 1:
            ahead = f", of which {scratch_depth} serve to look ahead" if scratch_depth else ""
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

    def _build(
        self, session: Session, sampler: Sampler, context: Sequence[int], file: Snapshot | None
    ) -> Built:
        target, models, drafting = self._target, self._models, self._strategy.drafting
        draft = models.draft(target, drafting)
        opened = None
        if draft is not None:
            require_same_tokenizer(target.tokenizer, draft.tokenizer, str(draft.spec))
            inner, held = self._caches.open(draft, "draft", context, file, self._clock)
            opened = OpenDraft(inner, held, models.costs(draft).one_row)
        head = models.head(target, drafting)
        texts = self._caches.texts(target)
        given = DrafterInputs(target, models.costs(target), sampler, head, opened, texts)
        return build_drafter(drafting, session, given)

    def _save(
        self, prompt: Sequence[int], context: Sequence[int], earlier: AnswerSoFar
    ) -> Iterator[Event]:
        """Write what the store holds of this column to disk."""
        race, strategy = self._race, self._strategy
        if not strategy.cache:
            raise DerbyError(f"{strategy.title} keeps no cache: save another column.")
        yield self._started(prompt)
        caches = {"target": self._caches.stored(self._target, context, len(context) - 1)}
        if (draft := self._models.draft(self._target, strategy.drafting)) is not None:
            caches["draft"] = self._caches.stored(draft, context, 1)
        record = record_of(race.request, strategy, race.target)
        record["shifts"] = [list(shift) for shift in earlier.shifts]
        snapshot = Snapshot(record, tuple(prompt), earlier.tokens, caches)
        yield Saved(self._index, default_folder().save(snapshot))
        yield Finished(self._index, "stopped", [])
