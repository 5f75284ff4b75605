"""What a race needs of models: each loaded once, off every clock, and an error told every time."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from backend.costs.pass_costs import PassCosts
from backend.engines.base import Engine
from backend.errors import DerbyError
from backend.heads.base import Head
from backend.heads.file import HEAD_SUFFIX, head_for
from backend.racing.models import LoadedModels
from backend.strategies.settings import HYBRID, TRAINED, Drafting, DraftModelDrafting, draft_spec
from backend.types import ModelSpec

Say = Callable[[str], None]


class Loading:
    """One race's view of `engines`. Everything raises DerbyError for what cannot be had."""

    def __init__(self, engines: LoadedModels, say: Say) -> None:
        self.prefixes = engines.prefixes
        self.grammars = engines.grammars
        self._engines = engines
        self._say = say
        self._found: dict[ModelSpec, Engine | Exception] = {}

    def engine(self, spec: ModelSpec) -> Engine:
        if spec not in self._found:
            try:
                self._found[spec] = self._engines.get(spec, self._say)
            except Exception as error:
                self._found[spec] = error
        engine = self._found[spec]
        if isinstance(engine, Exception):
            raise engine
        return engine

    def costs(self, engine: Engine, *, remeasure: bool = False) -> PassCosts:
        """What its passes cost; measured if that was never tried, or `remeasure`."""
        return self._engines.costs(engine, self._say, remeasure=remeasure)

    def head(self, target: Engine, drafting: Drafting) -> Head | None:
        """The trained head that drafts; None where a model does, or nothing."""
        if not isinstance(drafting, DraftModelDrafting):
            return None
        path = _head_file(target, drafting.draft)
        return None if path is None else self._engines.head(target, path, self._say)

    def draft(self, target: Engine, drafting: Drafting) -> Engine | None:
        """The model that drafts; None where a trained head does, or nothing."""
        if not isinstance(drafting, DraftModelDrafting) or _head_file(target, drafting.draft):
            return None
        return self.engine(draft_spec(target.spec, drafting.draft))

    def prepare(
        self, target: Engine, columns: Iterable[Drafting], *, remeasure: bool = False
    ) -> None:
        """Load and measure now what these columns will ask for, each model once, and `remeasure`
        what was measured before; errors wait for their column.
        """
        fresh: set[ModelSpec] = set()

        def measure(engine: Engine | None) -> None:
            if engine is not None and engine.spec not in fresh:
                fresh.add(engine.spec)
                self.costs(engine, remeasure=remeasure)

        for drafting in columns:
            with suppress(Exception):
                measure(target)
                measure(self.draft(target, drafting))
                self.head(target, drafting)


def _head_file(target: Engine, draft: str) -> Path | None:
    """The file that a draft's name stands for; None if it is a model's. Raises DerbyError where
    none was trained.
    """
    named = Path(draft).expanduser() if draft.endswith(HEAD_SUFFIX) else None
    path = named or (head_for(target.spec) if draft in (TRAINED, HYBRID) else None)
    if draft == TRAINED and path is None:
        raise DerbyError(
            f"No draft was trained for {target.spec.name!r}: choose {HYBRID}, int4, or a model "
            "with its tokenizer."
        )
    if path is not None and not target.capabilities.hidden_states:
        raise DerbyError(
            f"{target.spec} does not show its hidden states, which a trained draft reads: choose "
            "int4, or a model with its tokenizer."
        )
    return path
