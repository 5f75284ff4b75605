"""Every shipped grammar x 20 prompts x 3 temperatures on a real model, judged independently.

Not a test that pytest collects: about an hour on two cores. Run it from the repository's root,

    PYTHONPATH=. .venv/bin/python tests/sweep_grammars.py [PRECISION]

it ends with exit code 1 if a finished text was refused.
"""

import sys
from collections import Counter

from judges import JUDGES
from lib import examples
from races import run_solo

from backend.bench.prompts import PROMPTS
from backend.grammar.sources import shipped
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

TEMPERATURES = (0.0, 0.7, 1.0)
PROMPT_COUNT = 20
TOKENS = 320


def cases() -> list[tuple[str, int, str, float]]:
    """Grammar, number of the prompt, prompt, temperature; a grammar's own prompt is its first."""
    every = [examples(name).prompt for name in shipped()] + [prompt.text for prompt in PROMPTS]
    found: list[tuple[str, int, str, float]] = []
    for name in shipped():
        prompts = list(dict.fromkeys([examples(name).prompt, *every]))[:PROMPT_COUNT]
        found += [(name, i, text, t) for i, text in enumerate(prompts) for t in TEMPERATURES]
    # All grammars side by side, so that a sweep that is cut short has seen each of them.
    return sorted(found, key=lambda case: case[1])


def refusal(name: str, text: str) -> str:
    """Why the judge refuses a text; "" if it does not."""
    try:
        JUDGES[name](text)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(precision: str) -> int:
    engines, target = LoadedModels(), ModelSpec(precision=precision)
    runs, finished, refused = Counter[str](), Counter[str](), Counter[str]()
    for name, number, prompt, temperature in cases():
        request = Request(prompt, TOKENS, Sampling(temperature, seed=number))
        race = Race(request, (parse_column(f"grammar:grammar={name}"),), target)
        score = run_solo(race, 0, engines)
        runs[name] += 1
        if score.reason != "end of text":
            continue
        finished[name] += 1
        if why := refusal(name, score.text):
            refused[name] += 1
            print(f"{name}, prompt {number}, T = {temperature}: {why}\n    {score.text!r}")
    for name, count in runs.items():
        print(f"{name:15} {count:3} runs, {finished[name]:3} finished, {refused[name]} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main([*sys.argv[1:], "fp32"][0]))
