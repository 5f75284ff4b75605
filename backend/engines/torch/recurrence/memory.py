"""A memory of decaying outer products, as Mamba2 and the gated delta rule keep one a head.

Row t writes a value u_t under a key k_t into what is left of the memory, and reads with a query
q_t:

    S_t = exp(g_t) S_(t-1) + k_t u_t^T        o_t = S_t^T q_t

The delta rule writes what corrects the memory's answer to the key, in proportion beta_t:

    u_t = beta_t (v_t - exp(g_t) S_(t-1)^T k_t)

A pass over n rows reads S_0 and is otherwise products of n by n (the chunked form: Mamba2, arXiv
2405.21060; Gated DeltaNet, arXiv 2412.06464). One row is that with n = 1, so the width of a pass
changes a row's result by rounding alone. No S_t is made but the one that the next pass begins with,
which costs the same whichever row that follows.
"""

from typing import NamedTuple

import torch


class Written(NamedTuple):
    """What n rows write to h memories: float32.

    decays: [b, h, n], the g_t, none above 0; keys: [b, h, n, key dim]; values: the u_t, [b, h, n,
    value dim].
    """

    decays: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def corrections(memory: torch.Tensor, offered: Written, strengths: torch.Tensor) -> Written:
    """What the delta rule writes where these values v_t are offered to a memory
    [b, h, key dim, value dim] with strengths beta_t [b, h, n].
    """
    decays, keys, values = offered
    beta = strengths[..., None]
    wanted = beta * (values - _since_start(decays) * (keys @ memory))
    # Each row's answer holds what the rows before it have written: (I + L) u = wanted, L strictly
    # lower, as the solver reads it.
    earlier = beta * (keys @ keys.mT) * _since(decays)
    values = torch.linalg.solve_triangular(earlier, wanted, upper=False, unitriangular=True)
    return Written(decays, keys, values)


def recall(memory: torch.Tensor, written: Written, queries: torch.Tensor) -> torch.Tensor:
    """What the rows read, o_t: [b, h, n, value dim], with queries [b, h, n, key dim]."""
    within = (queries @ written.keys.mT) * _since(written.decays)
    return _since_start(written.decays) * (queries @ memory) + within @ written.values


def memory_after(memory: torch.Tensor, written: Written, count: int) -> torch.Tensor:
    """S_count, the memory behind `count` >= 1 of the rows: a new [b, h, key dim, value dim]."""
    decays, keys, values = (part[:, :, :count] for part in written)
    left = _since(decays)[..., -1, :, None]
    return _since_start(decays)[..., -1:, :] * memory + (keys * left).mT @ values


def _since_start(decays: torch.Tensor) -> torch.Tensor:
    """How much of the memory before the pass is left at each row: [b, h, n, 1]."""
    return decays.cumsum(-1).exp()[..., None]


def _since(decays: torch.Tensor) -> torch.Tensor:
    """How much of what row s writes is left at row t: [b, h, n (t), n (s)], 0 where s > t.

    Sums of the decays between, not differences of sums, which would cancel.
    """
    n = decays.shape[-1]
    between = torch.ones(n, n, dtype=torch.bool, device=decays.device).tril(-1)
    each = decays[..., None].expand(*decays.shape, n)
    return each.where(between, 0).cumsum(-2).exp().tril()
