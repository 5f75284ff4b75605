"""A race: one request, several strategies, one target model; and how it is run."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from backend.clock import Clock
from backend.constraints.base import Constraint, NullConstraint
from backend.decode import Parts, decode
from backend.drafters.base import Drafter, NullDrafter
from backend.drafters.draft_model import DraftModel
from backend.drafters.lookahead import Lookahead
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines import Engines
from backend.engines.base import Engine
from backend.events import Event, Failed, Finished, Prefilled, Preparing, Started
from backend.sampling import Sampler
from backend.schedule import Lane, explain, interleave
from backend.strategies import (
    DraftModelDrafting,
    LookaheadDrafting,
    LookupDrafting,
    Strategy,
    draft_spec,
)
from backend.text import require_same_tokenizer
from backend.types import DerbyError, ModelSpec, Request

MAX_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Race:
    request: Request
    columns: tuple[Strategy, ...]
    target: ModelSpec = field(default_factory=ModelSpec)

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
        lanes.append(Lane(index, _column(index, race, target, load, clock), clock))
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


def _column(
    index: int, race: Race, target: Engine, load: Callable[[ModelSpec], Engine], clock: Clock
) -> Iterator[Event]:
    """One column from its parts to its last event."""
    strategy = race.columns[index]
    prompt = target.tokenizer.encode(race.request.prompt, chat=race.request.chat)
    _require_room(len(prompt), race.request, strategy, target)
    yield Started(index, len(prompt), str(race.target))
    constraint: Constraint = NullConstraint()
    if strategy.grammar is not None:
        from backend.constraints.grammar import compile_grammar
        from backend.constraints.grammar_compile import matcher_tokenizer

        matcher_tokenizer(target.tokenizer)  # once a model, so no cost of this column's
        with clock.step(), clock.part("mask"):
            constraint = compile_grammar(strategy.grammar, target.tokenizer)
        yield Prefilled(index, 0, len(prompt), clock.last["total"])
    sampler = Sampler(race.request.sampling)
    drafter = _drafter(strategy, sampler, target, load)
    parts = Parts(
        session=target.open(),
        tokenizer=target.tokenizer,
        sampler=sampler,
        clock=clock,
        drafter=drafter,
        constraint=constraint,
        cache=strategy.cache,
        limit=strategy.limit,
    )
    yield from decode(index, prompt, race.request, parts)


def _require_room(prompt: int, request: Request, strategy: Strategy, target: Engine) -> None:
    room = target.capabilities.max_context
    needed = prompt + request.max_new_tokens + strategy.overhang
    if needed > room:
        ahead = f", and {strategy.overhang} for looking ahead" if strategy.overhang else ""
        raise DerbyError(
            f"The prompt has {prompt:,} tokens and {request.max_new_tokens:,} more were asked for"
            f"{ahead}; the model's context holds {room:,}. Shorten the prompt or ask for fewer "
            "tokens."
        )


def _drafter(
    strategy: Strategy, sampler: Sampler, target: Engine, load: Callable[[ModelSpec], Engine]
) -> Drafter:
    match strategy.drafting:
        case LookupDrafting(k, ngram):
            return PromptLookup(k, ngram)
        case LookaheadDrafting(window, level, guesses, seeded):
            if not target.capabilities.tree:
                raise DerbyError(
                    f"Lookahead needs tree attention, which {target.spec} does not have."
                )
            return Lookahead(window, level, guesses, seeded=seeded, seed=sampler.sampling.seed)
        case DraftModelDrafting(k, draft):
            spec = draft_spec(target.spec, draft)
            engine = load(spec)
            require_same_tokenizer(target.tokenizer, engine.tokenizer, str(spec))
            return DraftModel(engine.open(), sampler, k, target.tokenizer.eos_ids)
        case _:
            return NullDrafter()
