"""One column of a race, run by the local loop: from its parts to its last event."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.decoding.clock import Clock
from backend.decoding.constraint import Constraint
from backend.decoding.digits import rounded, rounded_value
from backend.decoding.drafter import Drafter
from backend.decoding.lane import Lane
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
    Prepared,
    Started,
    Step,
)
from backend.grammar.check import StoppedError, judge_apart
from backend.grammar.grammars import GrammarCompiler
from backend.grammar.thinking import BehindThinking, closing_tag
from backend.libraries.lane import library_events
from backend.libraries.library import Library, LibraryModel
from backend.programs.parser import Program, is_program, parse_program
from backend.programs.runner import hottest, run_program, slot_grammars
from backend.racing.cache_file import read_cache, require_cache, restore, save_cache
from backend.racing.loading import Loading
from backend.racing.sessions import Place, common_length
from backend.strategies.column import Column
from backend.strategies.declaration import DrafterInputs, Weights
from backend.strategies.settings import SESSION
from backend.text import prompt_tokens, require_fits, require_same_vocabulary
from backend.types import Layers, ModelSpec, Request


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Column `index` of a race, on the model `default` if it names none of its own. The rest: see
    Race.
    """

    index: int
    column: Column
    request: Request
    default: ModelSpec
    visitor: str
    save_cache: Path | None = None
    restore_cache: Path | None = None

    def lane(self, loading: Loading, stopped: Callable[[], bool]) -> Lane:
        """What the scheduler runs. Raises nothing: an error is the lane's first event.

        The scheduler asks `stopped()` between two events; the lane asks before every pass.
        """
        strategy = self.column.strategy
        try:
            if strategy.library is not None:
                return self._library_lane(strategy.library, loading, stopped)
            target = loading.engine(self.column.target(self.default))
        except Exception as error:
            return Lane(self.index, _failing(error))
        clock = Clock(target.synchronize)
        run = _LocalRun(self, target, loading, clock, stopped)
        return Lane(self.index, _until_stopped(self.index, run.events()), clock)

    def _library_lane(
        self, library: Library, loading: Loading, stopped: Callable[[], bool]
    ) -> Lane:
        if is_program(self.request.prompt):
            raise DerbyError(f"{self.column.title} cannot run programs: remove it.")
        target = self.column.target(self.default)
        model: LibraryModel = library.elsewhere or loading.engine(target)
        clock = Clock(model.synchronize)
        events = library_events(
            self.index,
            self.request,
            self.column.settings(),
            model,
            clock,
            stopped,
            takes_turns=library.takes_turns,
            keeps_text=self.column.keeps_text(self.request.sampling.temperature),
        )
        return Lane(self.index, events, clock, alone=not library.takes_turns)


def _failing(error: Exception) -> Iterator[Event]:
    raise error
    yield  # a generator, so that the error is raised on the lane's turn


def _until_stopped(index: int, events: Iterator[Event]) -> Iterator[Event]:
    """The column's events, also if it was stopped while it waited for a grammar."""
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
        stopped: Callable[[], bool],
    ) -> None:
        self._run = run
        self._column = run.column
        self._request = run.request
        self._target = target
        self._loading = loading
        self._clock = clock
        self._stopped = stopped
        self._compiled = 0.0  # seconds that the grammar took
        self._grammars = GrammarCompiler(loading.models.grammars, target.tokenizer)

    def events(self) -> Iterator[Event]:
        """Every event of the column's run."""
        index, request, column, target = self._run.index, self._request, self._column, self._target
        if self._run.save_cache is not None:
            require_cache(target)
        program = None
        if is_program(request.prompt):
            program = parse_program(request.prompt)
        prompt = self._prompt(program)
        positions = self._positions(len(prompt))
        yield Started(
            index,
            len(prompt),
            str(target.spec),
            target.tokenizer.fingerprint,
            target.spec.parts,
            column.keeps_text(hottest(request.sampling, program)),
        )
        if program is not None:
            # Made once a model, and so no cost of this column's.
            self._grammars.prepare(*slot_grammars(program), stopped=self._stopped)
            target.tokenizer.extending(0)
        constraint, sampler = self._constraint(prompt), Sampler(request.sampling)
        with ExitStack() as opened:
            drafter, draft_seconds = self._drafter(opened, sampler, prompt)
            layers = drafter.states.layers if drafter.states else ()
            session = self._session(opened, target, "target", prompt, layers)
            yield from self._known_costs(draft_seconds)
            if self._clock.seconds or session.length:
                seconds, compiled = rounded(self._clock.seconds), rounded(self._compiled)
                yield Prepared(index, session.length, seconds, compiled)
            parts = Parts(
                session,
                target.tokenizer,
                sampler,
                self._clock,
                drafter,
                constraint,
                cache=column.strategy.keeps_cache,
                positions=positions,
                costs=self._loading.costs(target),
                stopped=self._stopped,
            )
            if program is None:
                loop = self._judged(decode(index, prompt, request, parts), constraint)
                loop = self._loading.readings.share(index, prompt, parts, target, loop)
            else:
                loop = run_program(
                    index,
                    program,
                    prompt,
                    request,
                    parts,
                    self._grammars.compile,
                    column.grammar,
                )
            for event in self._with_corrected_costs(loop, draft_seconds):
                if isinstance(event, Finished) and self._run.save_cache is not None:
                    save_cache(self._run.save_cache, target, session)
                yield event

    def _prompt(self, program: Program | None) -> list[int]:
        """The prompt's tokens, or those in front of a program's own text."""
        tokenizer = self._target.tokenizer
        if program is None:
            return prompt_tokens(tokenizer, self._request)
        thinking = self._request.thinking
        return tokenizer.encode(program.user, chat=bool(program.user), thinking=thinking)

    def _positions(self, prompt: int) -> int:
        """Tokens that the context may hold. Raises DerbyError if the prompt alone fills it."""
        most, scratch_depth = self._target.max_context, self._column.scratch_depth
        limit = min(self._request.context or most, most)
        require_fits(prompt, limit, scratch_depth)
        return limit - scratch_depth

    def _constraint(self, prompt: Sequence[int]) -> Constraint:
        """The column's grammar; behind the model's thinking, if the prompt opens that."""
        if self._column.grammar is None:
            return Constraint()
        self._grammars.prepare(self._column.grammar, stopped=self._stopped)
        with self._clock.step(), self._clock.part("mask"):
            constraint = self._grammars.compile(self._column.grammar)
            piece = self._target.tokenizer.piece
            if closing := closing_tag(prompt, piece):
                constraint = BehindThinking(constraint, closing, piece)
        self._compiled = self._clock.seconds
        return constraint

    def _session(
        self,
        opened: ExitStack,
        engine: Engine,
        role: Literal["target", "draft"],
        prompt: Sequence[int],
        layers: Layers = (),
    ) -> Session:
        """A session that holds what is known of the prompt, with room for all that may come, and
        shows the hidden states of these layers.
        """
        run, column, sessions = self._run, self._column, self._loading.models.sessions
        place = Place(run.visitor, run.index, role, engine, layers)
        kept = bool(run.visitor) and column.cache == SESSION
        session = opened.enter_context(sessions.session(place, prompt, kept=kept))
        if run.restore_cache is not None and role == "target" and column.strategy.keeps_cache:
            stored = read_cache(run.restore_cache, engine)
            session.truncate(0)
            with self._clock.step():
                restore(session, stored, common_length(stored.tokens, prompt[:-1]))
        return session

    def _drafter(
        self, opened: ExitStack, sampler: Sampler, prompt: Sequence[int]
    ) -> tuple[Drafter, float]:
        """The column's drafter, and the seconds of a pass of its draft."""
        target, loading, strategy = self._target, self._loading, self._column.strategy
        if strategy.guesses and target.guesses == "none":
            raise DerbyError(
                f"{self._column.title} checks guesses, and {target.spec} computes one token at a "
                "time here: choose KV reuse, or another model."
            )
        weights = loading.weights(self._column, target)
        draft, missing = self._draft(opened, weights, prompt)
        inputs = DrafterInputs(
            self._column.settings(),
            target,
            loading.costs(target),
            sampler,
            draft,
            missing,
        )
        drafter = strategy.build(inputs)
        opened.callback(drafter.close)
        return drafter, 0.0 if draft is None else draft.seconds

    def _draft(
        self, opened: ExitStack, weights: Weights, prompt: Sequence[int]
    ) -> tuple[DraftNetwork | None, str]:
        """The network that drafts, opened; or None, and why there is none if one was wanted."""
        target, loading = self._target, self._loading
        if (trained := loading.head(target, weights)) is not None:
            network = trained()
            opened.callback(network.close)
            return network, ""
        engine, missing = loading.draft(target.spec, weights)
        if engine is None:
            return None, missing
        if engine.guesses == "none":
            raise DerbyError(
                f"{engine.spec} computes one token at a time here and cannot take a guess back: "
                "choose another draft."
            )
        require_same_vocabulary(target.tokenizer, engine.tokenizer, str(engine.spec))
        session = self._session(opened, engine, "draft", prompt)
        return ModelNetwork(session, engine, loading.call_seconds(engine)), ""

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

    def _judged(self, events: Iterator[Event], constraint: Constraint) -> Iterator[Event]:
        """The events; before the last one, how the whole answer, without the thinking in front of
        it, was judged if its JSON Schema let it end. That is on nobody's clock.
        """
        grammar = self._column.grammar
        pieces: list[str] = []
        thinking = constraint.thinking
        for event in events:
            pieces += [text for _, text in getattr(event, "spans", []) if not thinking]
            thinking = constraint.thinking
            ended = isinstance(event, Finished) and event.reason == "end of text"
            if ended and not thinking and grammar and grammar.kind == "json_schema":
                verdict = judge_apart(grammar.text, "".join(pieces), stopped=self._stopped)
                yield Judged(self._run.index, verdict.verdict, verdict.why)
            yield event
