"""One column of a race, run by the local loop: from its parts to its last event, or to disk."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace

from backend.costs.load import LoadCosts
from backend.decoding.clock import Clock
from backend.decoding.constraint import Constraint
from backend.decoding.context import Bounds
from backend.decoding.digits import rounded, rounded_value
from backend.decoding.drafter import Drafter
from backend.decoding.lane import Lane, LaneFactory
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.engines.base import Engine, Session
from backend.engines.draft import DraftNetwork, ModelNetwork
from backend.errors import DerbyError
from backend.events import (
    CostsKnown,
    Event,
    Finished,
    Judged,
    LoadKnown,
    Prepared,
    Saved,
    Started,
    Step,
)
from backend.grammar.grammars import GrammarCompiler
from backend.grammar.sandbox.parent import StoppedError, never
from backend.kvcache.column_caches import Caches
from backend.kvcache.snapshots import Snapshot, default_folder
from backend.kvcache.sources import EARLIER_ANSWERS, NOBODY, CacheSource, Scope, SnapshotFile
from backend.programs.parser import Program, is_program, parse_program
from backend.programs.runner import hottest, run_program, slot_grammars
from backend.racing.loading import Loading
from backend.racing.records import record_of
from backend.strategies.column import Column
from backend.strategies.declaration import DrafterInputs, Weights
from backend.text import require_same_tokenizer
from backend.types import AnswerSoFar, Layers, ModelSpec, Request

#: First tokens that a context shift keeps at least: attention leans on them (arXiv 2309.17453).
SINK = 4


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Column `index` of a race, going on from `answer`. `default` is the race's own model."""

    index: int
    column: Column
    answer: AnswerSoFar
    request: Request
    default: ModelSpec
    scope: Scope

    def lane(self, loading: Loading, stopped: Callable[[], bool]) -> Lane:
        """What the scheduler runs. Raises nothing: an error is the lane's first event.

        The scheduler asks `stopped()` between two events; a lane that waits for long asks too.
        """
        factory = self.column.strategy.lane
        try:
            if factory is not None:
                return self._other_lane(factory)
            target = loading.engine(self.column.target(self.default))
        except Exception as error:
            return Lane(self.index, _failing(error))
        clock = Clock(target.synchronize)
        run = _LocalRun(self, target, loading, clock, stopped)
        return Lane(self.index, _until_stopped(self.index, run.events()), clock)

    def _other_lane(self, factory: LaneFactory) -> Lane:
        if is_program(self.request.prompt):
            raise DerbyError(f"{self.column.title} cannot run programs: remove it.")
        return factory(self.index, self.request, self.column.settings())

    def save(self, loading: Loading, owner: str = "") -> Saved:
        """Write what is held of this column to disk, for this owner. Raises DerbyError if it is
        not enough.
        """
        target = loading.engine(self.column.target(self.default))
        snapshot = _LocalRun(self, target, loading, Clock()).snapshot()
        return Saved(self.index, default_folder(loading.models.limits).save(snapshot, owner))


def known_load(index: int, load: LoadCosts) -> LoadKnown:
    """What load costs the model of column `index`."""
    return LoadKnown(
        index,
        list(load.requests),
        list(load.curves[0].widths),
        [[rounded_value(seconds) for seconds in curve.seconds] for curve in load.curves],
        [[rounded_value(slope) for slope in curve.context_slope] for curve in load.curves],
    )


def _failing(error: Exception) -> Iterator[Event]:
    raise error
    yield  # a generator, so that the error is raised on the lane's turn


def _until_stopped(index: int, events: Iterator[Event]) -> Iterator[Event]:
    """The column's events, also if it was stopped while it waited for one."""
    try:
        yield from events
    except StoppedError:
        yield Finished(index, "stopped", [])


class _LocalRun:
    """A column whose model is loaded."""

    def __init__(
        self,
        run: ColumnRun,
        target: Engine,
        loading: Loading,
        clock: Clock,
        stopped: Callable[[], bool] = never,
    ) -> None:
        self._run = run
        self._column = run.column
        self._request = run.request
        self._target = target
        self._loading = loading
        self._clock = clock
        self._stopped = stopped
        # A column without a cache has none to keep.
        scope = run.scope if self._column.strategy.keeps_cache else NOBODY
        self._caches = Caches(loading.models.prefixes, scope, _source(self._column, run.answer))
        self._compiled = 0.0  # seconds that the grammar took
        self._grammars = GrammarCompiler(loading.models.grammars, target.tokenizer)

    def events(self) -> Iterator[Event]:
        """Every event of the column's run."""
        request, column = self._request, self._column
        file = self._caches.load()
        program = parse_program(request.prompt) if _has_program(request) else None
        prompt = self._prompt(program)
        answer = self._resumed(file, prompt, program)
        bounds = self._bounds(len(prompt), program)
        spec, fingerprint = self._target.spec, self._target.tokenizer.fingerprint
        keeps = column.keeps_text(hottest(request.sampling, program))
        yield Started(
            self._run.index,
            len(prompt),
            str(spec),
            fingerprint,
            spec.parts,
            keeps,
            self._target.capabilities.recurrent,
        )
        if program is not None:
            # Made once a model, and so no cost of this column's.
            self._grammars.prepare(*slot_grammars(program), stopped=self._stopped)
            self._target.tokenizer.extending(0)
        constraint = self._constraint()
        sampler = Sampler(request.sampling)
        context = answer.context(prompt)
        with ExitStack() as opened:
            drafter, draft_seconds = self._build(sampler, context, file)
            opened.callback(drafter.close)
            layers = drafter.states.layers if drafter.states else ()
            session, held = self._opened(self._target, "target", context, file, layers)
            opened.callback(session.close)
            yield from self._known_costs(draft_seconds)
            if self._clock.seconds:
                seconds, compiled = rounded(self._clock.seconds), rounded(self._compiled)
                yield Prepared(self._run.index, len(held), seconds, compiled)
            parts = Parts(
                session,
                self._target.tokenizer,
                sampler,
                self._clock,
                drafter,
                constraint,
                cache=column.strategy.keeps_cache,
                limit=column.limit,
                bounds=bounds,
                costs=self._loading.costs(self._target),
            )
            if program is None:
                loop = decode(self._run.index, prompt, request, parts, answer)
            else:
                loop = run_program(
                    self._run.index,
                    program,
                    prompt,
                    request,
                    parts,
                    self._grammars.compile,
                    column.grammar,
                    restart=column.strategy.restart,
                    single=column.strategy.single,
                )
            # The loop closes the session first, also where it is stopped: it knows what is in it.
            opened.enter_context(closing(loop))
            events = loop if program else self._judged(loop)
            yield from self._with_corrected_costs(events, draft_seconds)

    def _prompt(self, program: Program | None) -> list[int]:
        """The prompt's tokens, or those in front of a program's own text."""
        request, encode = self._request, self._target.tokenizer.encode
        if program is None:
            return encode(request.prompt, chat=request.chat, turns=request.turns)
        return encode(program.user, chat=True) if program.user else encode("", chat=False)

    def _resumed(
        self, file: Snapshot | None, prompt: Sequence[int], program: Program | None
    ) -> AnswerSoFar:
        """What the answer goes on from, read from the file if that is where it is."""
        answer = self._run.answer
        if answer.snapshot and file is not None:
            if list(file.prompt) != list(prompt):
                raise DerbyError(
                    f"Snapshot {answer.snapshot} holds a prompt of {len(file.prompt)} tokens that "
                    f"this model's tokenizer does not make of its text (it makes {len(prompt)}): "
                    "load it with the model it was saved with."
                )
            shifts = tuple((at, sink, drop) for at, sink, drop in file.record.get("shifts", ()))
            answer = replace(answer, tokens=file.answer, shifts=shifts)
        if program is not None and answer.tokens:
            raise _program_has_no_middle()
        return answer

    def _bounds(self, prompt: int, program: Program | None) -> Bounds:
        """Raises DerbyError if the prompt alone fills the context."""
        request, scratch_depth = self._request, self._column.scratch_depth
        limit = request.context or self._target.capabilities.max_context
        bounds = Bounds(
            min(limit, self._target.capabilities.max_context),
            scratch_depth,
            request.shift,
            max(SINK, self._system(program)),
        )
        if bounds.room(prompt) < 1:
            ahead = f" ({scratch_depth} of them for lookahead)" if scratch_depth else ""
            raise DerbyError(
                f"The prompt has {prompt:,} tokens; the context holds {bounds.positions:,}{ahead}. "
                "Shorten the prompt or raise the context limit."
            )
        return bounds

    def _system(self, program: Program | None) -> int:
        """How many first tokens all prompts share: those of the chat template's system prompt."""
        if not self._request.chat or (program is not None and not program.user):
            return 0
        pair = (self._target.tokenizer.encode(text, chat=True) for text in ("a", "1"))
        alike = itertools.takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False))
        return sum(1 for _ in alike)

    def _constraint(self) -> Constraint:
        if self._column.grammar is None:
            return Constraint()
        self._grammars.prepare(self._column.grammar, stopped=self._stopped)
        with self._clock.step(), self._clock.part("mask"):
            constraint = self._grammars.compile(self._column.grammar)
        self._compiled = self._clock.seconds
        return constraint

    def _judged(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events; before the last one, how the whole answer was judged if its grammar let it
        end. That is on nobody's clock.
        """
        pieces: list[str] = []
        for event in events:
            pieces += [text for _, text in getattr(event, "spans", [])]
            if isinstance(event, Finished) and event.reason == "end of text":
                yield from self._judgement("".join(pieces))
            yield event

    def _judgement(self, text: str) -> Iterator[Judged]:
        grammar = self._column.grammar
        judging = self._loading.models.grammars.judging
        found = judging.judge(grammar, text, self._stopped) if grammar else None
        if found is not None:
            yield Judged(
                self._run.index,
                found.verdict,
                found.pointer,
                found.why,
                list(found.later),
                found.forbidden,
            )

    def _build(
        self, sampler: Sampler, context: Sequence[int], file: Snapshot | None
    ) -> tuple[Drafter, float]:
        """The column's drafter, and the seconds of a pass of its draft."""
        target, loading, strategy = self._target, self._loading, self._column.strategy
        values, texts = self._column.settings(), self._caches.texts(target)
        weights = loading.weights(self._column, target)
        draft, missing = self._draft(weights, context, file)
        inputs = DrafterInputs(
            values,
            target,
            loading.costs(target),
            sampler,
            draft,
            missing,
            texts,
            self._longest(context),
            loading.models.experience(target, weights),
        )
        try:
            return strategy.build(inputs), 0.0 if draft is None else draft.seconds
        except BaseException:
            if draft is not None:
                draft.close()
            raise

    def _draft(
        self, weights: Weights, context: Sequence[int], file: Snapshot | None
    ) -> tuple[DraftNetwork | None, str]:
        """The network that drafts, opened; or None, and why there is none if one was wanted."""
        target, loading = self._target, self._loading
        if (trained := loading.head(target, weights)) is not None:
            return trained(), ""
        engine, missing = loading.draft(target.spec, weights)
        if engine is None:
            return None, missing
        require_same_tokenizer(target.tokenizer, engine.tokenizer, str(engine.spec))
        seconds = loading.call_seconds(engine)
        session, held = self._opened(engine, "draft", context, file)
        return ModelNetwork(session, engine, held, seconds), ""

    def _opened(
        self,
        engine: Engine,
        kind: str,
        context: Sequence[int],
        file: Snapshot | None,
        layers: Layers = (),
    ) -> tuple[Session, list[int]]:
        """A session that shows the hidden states of these layers, and the tokens that it holds;
        ready for all that may be written.
        """
        longest = self._longest(context)
        return self._caches.open(engine, kind, context, file, self._clock, longest, layers)

    def _longest(self, context: Sequence[int]) -> int:
        """Tokens that a text may have in the end that begins with these."""
        return len(context) + (self._column.limit or self._request.max_new_tokens)

    def _known_costs(self, draft: float) -> Iterator[Event]:
        """What passes are known to cost by now, a call of the draft `draft` seconds."""
        costs = self._loading.costs(self._target).now
        if costs.known:
            yield CostsKnown(
                self._run.index,
                list(costs.widths),
                [rounded_value(seconds) for seconds in costs.seconds],
                rounded_value(costs.width_change),
                rounded_value(draft),
                [rounded_value(slope) for slope in costs.context_slope],
            )

    def _with_corrected_costs(self, events: Iterator[Event], draft: float) -> Iterator[Event]:
        """The events; before the last one, what passes are known to cost by then, and what a call
        of the draft took, which was timed at another moment to be `draft` seconds.
        """
        calls, seconds = 0, 0.0
        for event in events:
            if isinstance(event, Step) and event.calls:
                calls, seconds = calls + event.calls, seconds + event.seconds["draft"]
            if isinstance(event, Finished):
                yield from self._known_costs(seconds / calls if calls else draft)
            yield event

    def snapshot(self) -> Snapshot:
        """The cache that the column left behind, and what is needed to go on."""
        if not self._column.strategy.keeps_cache:
            raise DerbyError(f"{self._column.title} keeps no cache: save another column.")
        if _has_program(self._request):
            raise _program_has_no_middle()
        prompt, answer = self._prompt(None), self._run.answer
        context = answer.context(prompt)
        caches = {"target": self._caches.stored(self._target, context, len(context) - 1)}
        weights = self._loading.weights(self._column, self._target)
        if (draft := self._loading.draft(self._target.spec, weights)[0]) is not None:
            with suppress(DerbyError):  # it may have read nothing, and can read all again
                caches["draft"] = self._caches.stored(draft, context, 1)
        record = record_of(self._request, self._column, self._target.spec)
        record["shifts"] = [list(shift) for shift in answer.shifts]
        return Snapshot(record, tuple(prompt), answer.tokens, caches)


def _has_program(request: Request) -> bool:
    return request.tags and is_program(request.prompt)


def _source(column: Column, answer: AnswerSoFar) -> CacheSource:
    """Where a column's caches begin: what an answer goes on from comes before the setting."""
    if answer.snapshot:
        return SnapshotFile(answer.snapshot)
    return EARLIER_ANSWERS if answer.tokens else column.cache


def _program_has_no_middle() -> DerbyError:
    return DerbyError(
        "A program cannot be continued or saved in the middle of its slots: run it again."
    )
