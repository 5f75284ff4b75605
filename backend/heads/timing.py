"""How long a pass of a head takes in a round."""

from statistics import median
from time import perf_counter

import numpy as np

from backend.heads.base import Head
from backend.types import PREFILL_CHUNK

#: Rows that a round's first pass usually feeds.
USUAL = 3

#: More bytes than a processor's caches hold.
CACHES = 1 << 26


def step_seconds(head: Head, repeats: int = 40) -> float:
    """Mean seconds of a pass as rounds make them: the first feeds a few rows and finds the
    processor's caches full of the target, the second is of one row and does not.
    """
    shape, ring = head.shape, head.open()
    others = np.zeros(CACHES, np.uint8)
    times: list[float] = []
    for rows in (*range(1, 17), PREFILL_CHUNK, *[USUAL, 1] * (repeats // 2)):
        if rows == USUAL:
            others += 1
        features = np.zeros((rows, shape.hidden), np.float32)
        ids = np.zeros(rows, np.int64)
        bias = np.zeros((rows, shape.slots + rows), np.float32)
        start = perf_counter()
        ring.run(features, ids, np.arange(rows), bias)
        times.append(perf_counter() - start)
    ring.close()
    measured = times[-repeats:]
    return (median(measured[::2]) + median(measured[1::2])) / 2
