"""One column of a race: from its parts to its last event."""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from backend.decoding.constraint import Constraint
from backend.decoding.digits import rounded, rounded_value
from backend.decoding.drafter import UNDECIDED, Decision, Drafter
from backend.decoding.lane import Lane
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.engines.base import Engine, Session
from backend.engines.draft import DraftNetwork, ModelNetwork
from backend.errors import DerbyError
from backend.events import (
    CostsKnown,
    Decided,
    Event,
    Finished,
    Judged,
    Prefilled,
    Prepared,
    Started,
    Step,
)
from backend.grammar.check import StoppedError, judge_apart
from backend.grammar.constraint import GrammarCompiler, closing_tag
from backend.libraries.lane import library_events
from backend.libraries.library import Library
from backend.programs.parser import Program, is_program, parse_program
from backend.programs.runner import hottest, run_program, slot_grammars
from backend.racing.cache_file import read_cache, require_cache, restore, save_cache
from backend.racing.models import LoadedModels, Say
from backend.racing.reading import Readings
from backend.racing.sessions import Place, common_length
from backend.strategies.column import Column
from backend.strategies.declaration import DrafterInputs
from backend.strategies.settings import SESSION
from backend.text import prompt_notice, prompt_tokens, require_fits, require_same_vocabulary
from backend.types import Layers, ModelSpec, Request


@dataclass(slots=True)
class ColumnRun:
    """The column of a lane, on the model `default` if it names none of its own. `stopped()`: it is
    to compute nothing more. The rest: see Race.
    """

    lane: Lane
    column: Column
    request: Request
    default: ModelSpec
    models: LoadedModels
    say: Say
    readings: Readings
    stopped: Callable[[], bool]
    visitor: str = ""
    save_cache: Path | None = None
    restore_cache: Path | None = None

    _decision: Decision = UNDECIDED
    _rows: int = 0  # that another column read, for the first step
    _calls: int = 0  # of the draft
    _call_seconds: float = 0.0  # what one takes, as it was timed before
    _drafting: float = 0.0  # seconds of all

    def events(self) -> Generator[Event | None]:
        """Every event. Raises what the column cannot do: DerbyError, or a library's error."""
        column, request, clock, index = self.column, self.request, self.lane.clock, self.lane.column
        if (library := column.strategy.library) is not None:
            yield from self._library_events(library)
            return

        target: Engine = self.models.get(column.target(self.default), self.say)
        clock.synchronize = target.synchronize
        if self.save_cache is not None:
            require_cache(target)
        program = parse_program(request.prompt) if is_program(request.prompt) else None
        prompt = self._prompt(target, program)
        positions = self._positions(target, len(prompt))
        yield Started(
            index,
            len(prompt),
            str(target.spec),
            target.tokenizer.fingerprint,
            target.spec.parts,
            column.keeps_text(hottest(request.sampling, program)),
        )
        grammars = GrammarCompiler(target.tokenizer)
        try:
            constraint = self._constraint(grammars, target, prompt, program)
        except StoppedError:
            yield Finished(index, "stopped", [])
            return
        compiled = clock.seconds

        with ExitStack() as opened:
            # How long a program's text gets is not known.
            rows = 0 if program else min(len(prompt) + request.max_new_tokens, positions)
            parts = self._parts(opened, target, constraint, prompt, rows)
            parts.positions, held = positions, parts.session.length
            yield from self._known_costs(target, self._call_seconds)
            if clock.seconds or held:
                yield Prepared(index, held, rounded(clock.seconds), rounded(compiled))
            reading = self.readings.begin(prompt, parts, target)
            if program is not None:
                compile_, own = grammars.compile, column.grammar
                loop = run_program(index, program, prompt, request, parts, compile_, own)
                reading = None
            else:
                loop = decode(index, prompt, request, parts)
            if reading is not None and reading.tokens:
                yield from reading.copied(index, prompt, parts)
                reading, self._rows = None, len(reading.tokens)
            for event in loop:
                if isinstance(event, Prefilled) and reading is not None:
                    reading.add(event, parts)
                if isinstance(event, Finished) and self.save_cache is not None:
                    save_cache(self.save_cache, target, parts.session)
                yield from self._with_news(event, parts, target)

    def _prompt(self, target: Engine, program: Program | None) -> list[int]:
        """The prompt's tokens, or those in front of a program's own text."""
        if program is None:
            notice = prompt_notice(target.tokenizer, self.request)
            if notice and not self.lane.column:
                self.say(notice)
            return prompt_tokens(target.tokenizer, self.request)
        user, thinking = program.user, self.request.thinking
        return target.tokenizer.encode(user, chat=bool(user), thinking=thinking)

    def _positions(self, target: Engine, prompt: int) -> int:
        """Tokens that the context may hold. Raises DerbyError if the prompt alone fills it."""
        limit = min(self.request.context or target.max_context, target.max_context)
        require_fits(prompt, limit, self.column.scratch_depth)
        return limit - self.column.scratch_depth

    def _constraint(
        self,
        grammars: GrammarCompiler,
        target: Engine,
        prompt: Sequence[int],
        program: Program | None,
    ) -> Constraint:
        """The column's grammar, behind the model's thinking if the prompt opens that. What is
        checked and made once a model is no cost of this column's. Raises StoppedError.
        """
        tokenizer, grammar = target.tokenizer, self.column.grammar
        if program is not None:
            grammars.prepare(*slot_grammars(program), stopped=self.stopped)
            tokenizer.extending(0)
        if grammar is None:
            return Constraint()
        grammars.prepare(grammar, stopped=self.stopped)
        with self.lane.clock.step(), self.lane.clock.part("mask"):
            return grammars.compile(grammar, closing=closing_tag(prompt, tokenizer.piece))

    def _parts(
        self,
        opened: ExitStack,
        target: Engine,
        constraint: Constraint,
        prompt: Sequence[int],
        rows: int,
    ) -> Parts:
        """What runs the column, opened: drafter and session, with room for so many `rows`."""
        clock, strategy = self.lane.clock, self.column.strategy
        sampler = Sampler(self.request.sampling)
        drafter = self._drafter(opened, target, sampler, prompt, rows)
        opened.callback(drafter.close)
        layers = drafter.states.layers if drafter.states else ()
        session = self._session(opened, "target", target, prompt, rows, layers)
        if self.restore_cache is not None and strategy.keeps_cache:
            stored = read_cache(self.restore_cache, target)
            session.truncate(0)
            with clock.step():
                restore(session, stored, common_length(stored.tokens, prompt[:-1]))
        return Parts(
            session,
            target.tokenizer,
            sampler,
            clock,
            drafter,
            constraint,
            cache=strategy.keeps_cache,
            trees=target.guesses == "trees",
            costs=self.models.costs(target),
            stopped=self.stopped,
        )

    def _session(
        self,
        opened: ExitStack,
        role: Literal["target", "draft"],
        engine: Engine,
        prompt: Sequence[int],
        rows: int,
        layers: Layers = (),
    ) -> Session:
        """A session that holds what is known of the prompt."""
        keep = bool(self.visitor) and self.column.cache == SESSION
        place = Place(self.visitor, self.lane.column, role, engine, layers, keep)
        depth = self.column.scratch_depth if role == "target" else 0
        rows = min(rows + depth, engine.max_context) if rows else 0
        return opened.enter_context(self.models.sessions.session(place, prompt, rows))

    def _with_news(self, event: Event, parts: Parts, target: Engine) -> list[Event]:
        """An event of the loop and what the drafter has decided since the last one; before the
        last of all how the text was judged and what passes cost by now.
        """
        drafter, news = parts.drafter, list[Event]()
        if isinstance(event, Step):
            if event.calls:
                self._calls += event.calls
                self._drafting += event.seconds["draft"]
            event, self._rows = replace(event, rows=event.rows + self._rows), 0
        if isinstance(event, Finished):
            drafter.conclude()
            if event.reason == "end of text":
                news += self._judged(parts.constraint.answer())
            seconds = self._drafting / self._calls if self._calls else self._call_seconds
            news += self._known_costs(target, seconds)
        decided: list[Event] = []
        if drafter.decision is not self._decision:
            self._decision = decision = drafter.decision
            settings, declined = dict(decision.settings), list(decision.declined)
            predicted, why = rounded_value(decision.predicted), decision.why
            plain = decision.plain
            decided.append(Decided(self.lane.column, settings, predicted, why, declined, plain))
        return [*news, *decided, event] if isinstance(event, Finished) else [event, *decided]

    def _judged(self, answer: str) -> list[Event]:
        """How the whole answer is judged if a JSON Schema let it end. That is on nobody's clock."""
        grammar = self.column.grammar
        if grammar is None or grammar.kind != "json_schema" or is_program(self.request.prompt):
            return []
        judgement = judge_apart(grammar.text, answer, stopped=self.stopped)
        return [Judged(self.lane.column, judgement.verdict, judgement.why)]

    def _known_costs(self, target: Engine, call_seconds: float) -> list[Event]:
        """What passes are known to cost by now, a call of the draft `call_seconds`."""
        costs = self.models.costs(target).now
        if not costs.known:
            return []
        return [
            CostsKnown(
                self.lane.column,
                list(costs.widths),
                [rounded_value(seconds) for seconds in costs.seconds],
                rounded_value(call_seconds),
                [rounded_value(slope) for slope in costs.context_slope],
            )
        ]

    def _drafter(
        self,
        opened: ExitStack,
        target: Engine,
        sampler: Sampler,
        prompt: Sequence[int],
        rows: int,
    ) -> Drafter:
        """The column's drafter. Raises DerbyError for what cannot be had."""
        column, strategy = self.column, self.column.strategy
        if strategy.guesses and target.guesses == "none":
            raise DerbyError(
                f"{column.title} checks guesses, and {target.spec} computes one token at a time "
                "here: choose KV reuse, or another model."
            )
        if column.scratch_depth and target.guesses == "chains":
            raise DerbyError(
                f"{column.title} checks several continuations at once, and {target.spec} only one "
                "here: choose another strategy, or another model."
            )
        for name in column.drafts.values():  # their files say of what kind they are
            self.models.fetch(name, self.say)
        weights, draft, missing = strategy.weights(column.settings(), target), None, ""
        if isinstance(weights, ModelSpec):
            draft, missing = self._model_draft(opened, target, weights, prompt, rows)
        elif weights is not None:
            if isinstance(weights, Path):
                weights = self.models.head(target, weights, self.say)
            draft = weights()
            opened.callback(draft.close)
        if column.automatic:
            self.models.price(target, self.say)
        self._call_seconds = 0.0 if draft is None else draft.seconds
        costs = self.models.costs(target)
        inputs = DrafterInputs(column.settings(), target, costs, sampler, draft, missing)
        return strategy.build(inputs)

    def _model_draft(
        self,
        opened: ExitStack,
        target: Engine,
        spec: ModelSpec,
        prompt: Sequence[int],
        rows: int,
    ) -> tuple[DraftNetwork | None, str]:
        """A model that drafts; or None, and why: a copy of the target that cannot be had is no
        must.
        """
        try:
            engine: Engine = self.models.get(spec, self.say)
        except DerbyError as error:
            if spec.name != target.spec.name:
                raise
            return None, error.reason
        if engine.guesses == "none":
            raise DerbyError(
                f"{engine.spec} computes one token at a time here and cannot take a guess back: "
                "choose another draft."
            )
        require_same_vocabulary(target.tokenizer, engine.tokenizer, str(engine.spec))
        session = self._session(opened, "draft", engine, prompt, rows)
        return ModelNetwork(session, engine, self.models.call_seconds(engine)), ""

    def _library_events(self, library: Library) -> Generator[Event | None]:
        column, lane = self.column, self.lane
        if is_program(self.request.prompt):
            raise DerbyError(f"{column.title} cannot run programs: remove it.")
        for name in column.drafts.values():
            self.models.fetch(name, self.say)
        model = library.elsewhere or self.models.get(column.target(self.default), self.say)
        lane.clock.synchronize = model.synchronize
        yield from library_events(
            lane.column,
            self.request,
            column.settings(),
            model,
            lane.clock,
            self.stopped,
            takes_turns=library.takes_turns,
            keeps_text=column.keeps_text(self.request.sampling.temperature),
        )
