"""One column of a race: from its parts to its last event."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from backend.decoding.clock import Clock, rounded, rounded_value
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.decoding.seams import UNDECIDED, Constraint, Decision, Drafter
from backend.engines.draft import DraftNetwork, ModelNetwork
from backend.engines.engine import Engine
from backend.engines.session import Session
from backend.errors import DerbyError
from backend.events import (
    CostsKnown,
    Decided,
    Event,
    Finished,
    Judged,
    Prepared,
    Started,
)
from backend.grammar.check import judge_apart
from backend.grammar.constraint import GrammarCompiler, closing_tag
from backend.libraries.lane import library_events
from backend.libraries.library import Library
from backend.programs.parser import Program, is_program, parse_program
from backend.programs.runner import hottest, most_tokens, run_program, slot_grammars
from backend.racing.caches import require_cache, restore, save_cache
from backend.racing.models import LoadedModels, Say
from backend.strategies.column import Column
from backend.strategies.declaration import DrafterInputs
from backend.tokenizer import positions_for, prompt_tokens, require_same_vocabulary
from backend.types import Layers, ModelSpec, Request


@dataclass(slots=True, kw_only=True)
class ColumnRun:
    """Column `index` of a race, on the model `spec`. `stopped()`: it is to compute nothing more.
    The rest: see Race.
    """

    index: int
    column: Column
    spec: ModelSpec
    request: Request
    models: LoadedModels
    say: Say
    stopped: Callable[[], bool]
    save_cache: Path | None
    restore_cache: Path | None
    clock: Clock = field(default_factory=Clock)

    _opened: ExitStack = field(default_factory=ExitStack)
    _target: Engine = field(init=False)
    _program: Program | None = None
    _prompt: list[int] = field(init=False)
    _positions: int = 0  # tokens that the context may hold
    _decision: Decision = UNDECIDED

    def events(self) -> Generator[Event | None]:
        """Every event. Raises what the column cannot do: DerbyError, or a library's error."""
        library = self.column.strategy.library
        return self._own_events() if library is None else self._library_events(library)

    def _own_events(self) -> Generator[Event]:
        column, request, clock, index = self.column, self.request, self.clock, self.index
        self._target = target = self.models.get(self.spec, self.say)
        clock.synchronize = target.synchronize
        if self.save_cache is not None:
            require_cache(target)
        if is_program(request.prompt):
            self._program = program = parse_program(request.prompt)
            self._prompt = target.tokenizer.encode(  # what stands in front of its own text
                program.user, chat=bool(program.user), thinking=request.thinking
            )
        else:
            self._prompt = prompt_tokens(target.tokenizer, request)
        prompt, program = self._prompt, self._program
        self._positions = positions_for(len(prompt), request, target.max_context)
        yield Started(
            index,
            len(prompt),
            spec=asdict(target.spec),
            lossless=column.lossless(hottest(request.sampling, program)),
            **target.tokenizer.facts,
        )
        grammars = GrammarCompiler(target.tokenizer)
        constraint = self._constraint(grammars)
        with self._opened:
            parts = self._parts(constraint)
            reused = parts.session.length
            if clock.seconds or reused:
                yield Prepared(index, reused, rounded(clock.seconds))
            if program is None:
                loop = decode(index, prompt, request, parts)
            else:
                compile_, own = grammars.compile, column.grammar
                loop = run_program(index, program, prompt, request, parts, compile_, own)
            for event in loop:
                yield from self._with_news(event, parts)

    def _constraint(self, grammars: GrammarCompiler) -> Constraint:
        """The column's grammar, behind the model's thinking if the prompt opens that. What is
        checked and made once a model is no cost of this column's.
        """
        tokenizer, grammar, clock = self._target.tokenizer, self.column.grammar, self.clock
        if self._program is not None:
            grammars.prepare(*slot_grammars(self._program))
            tokenizer.extending(0)
        if grammar is None:
            return Constraint()
        grammars.prepare(grammar)
        with clock.step(), clock.phase("mask"):
            return grammars.compile(grammar, closing=closing_tag(self._prompt, tokenizer.piece))

    def _parts(self, constraint: Constraint) -> Parts:
        """What runs the column, open as long as it runs."""
        target, clock, strategy = self._target, self.clock, self.column.strategy
        sampler = Sampler(self.request.sampling)
        drafter = self._drafter(sampler)
        self._opened.callback(drafter.close)
        session = self._session(target, drafter.states.layers if drafter.states else ())
        if self.restore_cache is not None and strategy.keeps_cache:
            with clock.step():
                restore(self.restore_cache, target, session, self._prompt)
        return Parts(
            session,
            target.tokenizer,
            sampler,
            clock,
            drafter,
            constraint,
            cache=strategy.keeps_cache,
            positions=self._positions,
            costs=self.models.costs(target),
            stopped=self.stopped,
        )

    def _session(self, engine: Engine, layers: Layers = ()) -> Session:
        """A session with room for the whole text, so that no cache grows on the clock."""
        program = self._program
        new = most_tokens(program, engine.tokenizer) if program else self.request.max_new_tokens
        rows = min(len(self._prompt) + new, self._positions, engine.max_context)
        session = self.models.session(engine, rows, layers)
        return self._opened.enter_context(session)

    def _drafter(self, sampler: Sampler) -> Drafter:
        """The column's drafter. Raises DerbyError for what cannot be had."""
        target, column, strategy = self._target, self.column, self.column.strategy
        if strategy.guesses and target.guesses == "none":
            raise DerbyError(
                f"{column.title} checks guesses, and {target.spec} computes one token at a time "
                "here: choose KV reuse, or another model."
            )
        for name in column.drafts.values():  # their files say of what kind they are
            self.models.fetch(name, self.say)
        weights, draft = strategy.weights(column.settings(), target), None
        if isinstance(weights, ModelSpec):
            draft = self._model_draft(weights)
        elif weights is not None:
            if isinstance(weights, Path):
                weights = self.models.eagle3(target, weights, self.say)
            draft = weights()
            self._opened.callback(draft.close)
        if column.automatic:
            self.models.measure_costs(target, self.say)
        costs = self.models.costs(target)
        return strategy.build(DrafterInputs(column.settings(), target, costs, sampler, draft))

    def _model_draft(self, spec: ModelSpec) -> DraftNetwork | None:
        """A model that drafts. A copy of the target is no must: None, and the user hears why."""
        try:
            engine: Engine = self.models.get(spec, self.say)
        except DerbyError as error:
            if spec.name != self._target.spec.name:
                raise
            self.say(f"{self.column.title} goes on without a draft. {error}")
            return None
        if engine.guesses == "none":
            raise DerbyError(
                f"{engine.spec} computes one token at a time here and cannot take a guess back: "
                "choose another draft."
            )
        require_same_vocabulary(self._target.tokenizer, engine.tokenizer, str(engine.spec))
        return ModelNetwork(self._session(engine), engine, self.models.call_seconds(engine))

    def _with_news(self, event: Event, parts: Parts) -> list[Event]:
        """An event of the loop and what the drafter has decided since the last one; before the
        last of all how the text was judged and what passes cost by now.
        """
        drafter, news = parts.drafter, list[Event]()
        ended = isinstance(event, Finished)
        if ended:
            if self.save_cache is not None:
                save_cache(self.save_cache, self._target, parts.session)
            drafter.conclude()
            if event.reason == "end of text":
                news += self._judged(parts.constraint.text())
            costs = self.models.costs(self._target).now
            if costs.known:
                seconds = list(map(rounded_value, costs.seconds))
                news.append(CostsKnown(self.index, list(costs.widths), seconds))
        if drafter.decision is not self._decision:
            self._decision = decision = drafter.decision
            settings, declined = dict(decision.settings), list(decision.declined)
            news.append(Decided(self.index, settings, decision.why, declined, decision.plain))
        return [*news, event] if ended else [event, *news]

    def _judged(self, text: str) -> list[Event]:
        """How the whole text is judged if a JSON Schema let it end. That is on nobody's clock."""
        grammar = self.column.grammar
        if grammar is None or grammar.kind != "json_schema" or self._program is not None:
            return []
        judgement = judge_apart(grammar.text, text)
        return [Judged(self.index, judgement.verdict, judgement.why)]

    def _library_events(self, library: Library) -> Generator[Event | None]:
        column = self.column
        if is_program(self.request.prompt):
            raise DerbyError(f"{column.title} cannot run programs: remove it.")
        for name in column.drafts.values():
            self.models.fetch(name, self.say)
        model = library.elsewhere or self.models.get(self.spec, self.say)
        yield from library_events(
            self.index,
            self.request,
            column.settings(),
            model,
            self.clock,
            self.stopped,
            takes_turns=library.takes_turns,
            lossless=column.lossless(self.request.sampling.temperature),
        )
