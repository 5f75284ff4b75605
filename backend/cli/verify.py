"""python -m backend verify."""

from dataclasses import replace
from typing import Annotated

import typer

from backend.bench.prompts import PROMPTS
from backend.cli.console import out
from backend.cli.options import Device, MaxNewTokens
from backend.engines.registry import engines
from backend.errors import DerbyError
from backend.models.files import BUILT_IN
from backend.racing.models import LoadedModels
from backend.types import ModelSpec

#: Those that run models.
COMPARED = [name for name, each in engines().items() if not each.demo]


def verify(
    engine: Annotated[list[str], typer.Option(help="An engine to check. Repeatable.")] = COMPARED,
    prompts: Annotated[
        int, typer.Option(help="How many of the six prompts to use.", min=1, max=len(PROMPTS))
    ] = len(PROMPTS),
    model: Annotated[
        str, typer.Option(help="Another model than the built-in one, as it was published.")
    ] = BUILT_IN,
    device: Device = "CPU",
    max_new_tokens: MaxNewTokens = 96,
    first: Annotated[
        int, typer.Option(help="The case to begin with, to go on with a run that ended.", min=1)
    ] = 1,
) -> None:
    from backend.bench.verify import PENALIZED, TARGETS, cases
    from backend.bench.verify import verify as run_cases

    promised = [
        replace(target, name=model, device=device)
        for target in TARGETS
        if target.engine in engine and (model == BUILT_IN or target.precision != "int4-exact")
    ]
    others = set(engine) - {target.engine for target in promised}
    targets = (*promised, *(ModelSpec(model, name, device=device) for name in sorted(others)))
    chosen = (
        *cases(targets, PROMPTS[:prompts]),
        *cases(targets, PROMPTS[:1], PENALIZED, ignore_eos=True),
    )
    unequal = 0
    if not (left := chosen[first - 1 :]):
        raise DerbyError(f"There are {len(chosen)} cases: choose one of them, and not {first}.")
    for number, result in enumerate(run_cases(left, LoadedModels(), max_new_tokens), first):
        case = result.case
        unequal += not result.equal
        verdict = f"{len(result.verdicts)} columns equal" if result.equal else "NOT EQUAL"
        out.print(
            f"{number}/{len(chosen)} {case.target.engine} {case.target.precision} "
            f"{case.prompt.category} "
            f"{case.sampling} seed={case.sampling.seed}: {verdict}, {result.tokens} tokens",
            highlight=False,
        )
        for name, sentence in result.verdicts:
            if sentence != "equal":
                out.print(f"    {name}: {sentence}", highlight=False)
    out.print(f"{len(left) - unequal} of {len(left)} cases: all columns equal")
    raise typer.Exit(1 if unequal else 0)
