"""python -m backend tune."""

import json
from dataclasses import asdict, dataclass

from backend.bench.tables import results_table
from backend.cli.console import out, say
from backend.cli.options import AsJson, Limit, MaxNewTokens, PromptSet, Target
from backend.cli.tables import curve
from backend.racing.models import LoadedModels
from backend.results.intervals import LEAST


@dataclass(frozen=True, slots=True)
class FewPrompts(PromptSet):
    """The number of prompts that tells settings apart within minutes."""

    limit: Limit = 4


def tune(
    prompts: FewPrompts, target: Target, max_new_tokens: MaxNewTokens = 96, as_json: AsJson = False
) -> None:
    from backend.bench.tune import tune as measure_and_predict

    spec = target.spec
    tuning = measure_and_predict(spec, prompts.read(), max_new_tokens, LoadedModels(), say)
    if as_json:
        print(json.dumps(asdict(tuning)))
        return
    out.print(curve(tuning.costs, tuning.draft_steps))
    out.print(results_table(f"tune: {spec}, {max_new_tokens} new tokens, greedy", tuning.rows))
    if not any(row.interval for row in tuning.rows):
        say(f"With fewer than {LEAST} prompts no setting can be shown to be faster: raise --limit.")
    out.print(f"Use: -c {tuning.best}", highlight=False)
