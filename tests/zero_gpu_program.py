"""A program that races as a ZeroGPU Space does, by the package `spaces` itself, where there is no
GPU: all but the weights' way onto it. Its argument is a model's folder; it prints JSON.
"""

import json
import sys
import threading
from dataclasses import replace
from importlib import import_module
from typing import Any

from backend.engines.torch.engine import _PLACED, place
from backend.events import Failed, Finished, Step
from backend.racing.hosts import zero_gpu
from backend.racing.hosts.inline import InlineHost
from backend.racing.hosts.zero_gpu import ZeroGpuHost
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request


def main(folder: str) -> dict[str, Any]:
    spaces = import_module("spaces")  # before torch and gradio
    on_gpu: Any = import_module("spaces.zero.torch")
    emulated = ModelSpec(folder, "torch", device="CUDA")
    place(emulated, str)
    devices = {str(parameter.device) for parameter in _PLACED.pop(emulated).parameters()}
    on_gpu.init, on_gpu.move = lambda _uuid: None, lambda callback=None: None
    zero_gpu.SHORTEST = zero_gpu.LONGEST = 600  # a busy machine imports for long
    place(ModelSpec(folder, "torch"), str)
    host = ZeroGpuHost(InlineHost(), spaces.GPU, lambda spec: spec.engine == "torch")
    columns = tuple(map(parse_column, ("kv", "lookup")))
    race = Race(Request("Who is it?", 8, chat=False), columns, ModelSpec(folder, "torch"))
    texts: dict[int, list[int]] = {0: [], 1: []}
    for event in host.stream(race, lambda: False):
        if isinstance(event, Step):
            texts[event.column] += event.tokens
    stopped = threading.Event()
    long, ends = replace(race, request=replace(race.request, max_new_tokens=200)), []
    for event in host.stream(long, stopped.is_set):
        if isinstance(event, Step):
            stopped.set()
        if isinstance(event, Finished | Failed):
            ends.append(getattr(event, "reason", str(event)))
    refused = [e.message for e in host.stream(race, lambda: False) if isinstance(e, Failed)]
    return {"devices": sorted(devices), "texts": texts, "ends": ends, "refused": refused}


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(main(sys.argv[1]))}\n")
