"""Every shipped grammar x 20 prompts x 3 temperatures on a real model, judged independently.

Not a test that pytest collects: about an hour on two cores. Run it from the repository's root,

    PYTHONPATH=. .venv/bin/python tests/sweep_grammars.py [RESULTS.jsonl] [PRECISION]

it goes on where it stopped, and ends with exit code 1 if a finished text was refused.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from judges import JUDGES

from backend.bench.prompts import PROMPTS
from backend.bench.runner import run_solo
from backend.grammar.sources import examples, shipped
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


def main(results: Path, precision: str) -> int:
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    records = [json.loads(line) for line in lines]
    done = {(r["grammar"], r["prompt"], r["temperature"]) for r in records}
    engines = LoadedModels()
    target = ModelSpec(precision=precision)
    with results.open("a", encoding="utf-8") as file:
        for name, number, prompt, temperature in cases():
            if (name, number, temperature) in done:
                continue
            request = Request(prompt, TOKENS, Sampling(temperature, seed=number))
            race = Race(request, (parse_column(f"grammar:grammar={name}"),), target)
            score = run_solo(race, 0, engines)
            finished = score.reason == "end of text"
            record = {
                "grammar": name,
                "prompt": number,
                "temperature": temperature,
                "finished": finished,
                "tokens": len(score.tokens),
                "text": score.text,
                "refused": refusal(name, score.text) if finished else "",
            }
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
    finished = Counter(r["grammar"] for r in records if r["finished"])
    runs = Counter(r["grammar"] for r in records)
    refused = [r for r in records if r["refused"]]
    for name, count in runs.items():
        bad = sum(r["grammar"] == name for r in refused)
        print(f"{name:15} {count:3} runs, {finished[name]:3} finished, {bad} refused")
    for record in refused:
        print(f"{record['grammar']}: {record['refused']}\n    {record['text']!r}")
    print(f"{len(records)} runs, {finished.total()} finished, {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    path, precision, *_ = [*sys.argv[1:], *("sweep.jsonl", "fp32")[len(sys.argv) - 1 :]]
    sys.exit(main(Path(path), precision))
