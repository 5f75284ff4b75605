"""The recurrent layers of transformers' models, each as a pass over n rows behind a state."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from backend.engines.torch.recurrence.convolution import convolve, window_after
from backend.engines.torch.recurrence.memory import (
    Written,
    corrections,
    memory_after,
    recall,
)

#: What a layer keeps of the text before the next row. Nobody writes to its tensors.
State = tuple[torch.Tensor, ...]

#: The state behind so many of a pass's rows, at least one.
After = Callable[[int], State]


class Recurrence(NamedTuple):
    """How a kind of layer is computed.

    `start(layer)`: its state before any text, b = 1. `run(layer, rows, state)`: what it makes of n
    rows [b, n, D], of the same shape, and its states behind them.
    """

    start: Callable[[Any], State]
    run: Callable[[Any, torch.Tensor, State], tuple[torch.Tensor, After]]


def _zeros(like: torch.Tensor, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.zeros(1, *shape, dtype=dtype or like.dtype, device=like.device)


# LFM2's gated convolution. State: window [b, w - 1, D].


def _short_start(layer: Any) -> State:
    return (_zeros(layer.in_proj.weight, layer.L_cache - 1, layer.conv.weight.shape[0]),)


def _short_run(layer: Any, rows: torch.Tensor, state: State) -> tuple[torch.Tensor, After]:
    before, behind, given = layer.in_proj(rows).chunk(3, dim=-1)
    sums, joined = convolve(state[0], before * given, layer.conv.weight[:, 0], layer.conv.bias)
    done = layer.out_proj(behind * sums.to(rows.dtype))
    return done, lambda count: (window_after(joined, layer.L_cache, count),)


# The gated delta rule behind a convolution. State: window [b, w - 1, 2 key + value channels] and
# memory, float32 [b, value heads, key head dim, value head dim].


class _Delta(NamedTuple):
    """A layer's projections of n rows.

    mixed: [b, n, 2 key + value channels], queries, keys and values before the convolution with
    weights [channels, w]; gate: [b, n, value heads, value head dim]; decay, strength: [b, n, value
    heads], before their functions.
    """

    mixed: torch.Tensor
    weight: torch.Tensor
    gate: torch.Tensor
    decay: torch.Tensor
    strength: torch.Tensor


def _qwen3_next(layer: Any, rows: torch.Tensor) -> _Delta:
    ordered = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(rows), layer.in_proj_ba(rows))
    *mixed, gate, strength, decay = ordered
    joined = torch.cat([part.flatten(2) for part in mixed], dim=-1)
    return _Delta(joined, layer.conv1d.weight[:, 0], gate, decay, strength)


def _qwen3_5(layer: Any, rows: torch.Tensor) -> _Delta:
    return _Delta(
        layer.in_proj_qkv(rows),
        layer.conv1d.weight[:, 0],
        layer.in_proj_z(rows).unflatten(-1, (-1, layer.head_v_dim)),
        layer.in_proj_a(rows),
        layer.in_proj_b(rows),
    )


def _olmo(layer: Any, rows: torch.Tensor) -> _Delta:
    mixed = [layer.q_proj(rows), layer.k_proj(rows), layer.v_proj(rows)]
    convolutions = [layer.q_conv1d, layer.k_conv1d, layer.v_conv1d]
    return _Delta(
        torch.cat(mixed, dim=-1),
        torch.cat([convolution.weight[:, 0] for convolution in convolutions]),
        layer.g_proj(rows).unflatten(-1, (-1, layer.head_v_dim)),
        layer.a_proj(rows),
        layer.b_proj(rows),
    )


def _delta_start(layer: Any) -> State:
    channels = 2 * layer.key_dim + layer.value_dim
    heads, key, value = layer.num_v_heads, layer.head_k_dim, layer.head_v_dim
    return (
        _zeros(layer.dt_bias, layer.conv_kernel_size - 1, channels),
        _zeros(layer.dt_bias, heads, key, value, dtype=torch.float32),
    )


def _delta_run(
    projected: _Delta, layer: Any, rows: torch.Tensor, state: State
) -> tuple[torch.Tensor, After]:
    window, memory = state
    sums, joined = convolve(window, projected.mixed, projected.weight, None)
    mixed = functional.silu(sums).to(rows.dtype).float()
    query, key, value = mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], dim=-1)
    repeats = layer.num_v_heads // layer.num_k_heads
    query, key = (
        _unit(_by_head(part, layer.head_k_dim)).repeat_interleave(repeats, dim=1)
        for part in (query, key)
    )
    strength = projected.strength.float().sigmoid().mT
    if getattr(layer, "allow_neg_eigval", False):
        strength = 2 * strength
    step = functional.softplus(projected.decay.float() + layer.dt_bias.float())
    offered = Written(
        (-layer.A_log.float().exp() * step).mT, key, _by_head(value, layer.head_v_dim)
    )
    written = corrections(memory, offered, strength)
    read = recall(memory, written, query / layer.head_k_dim**0.5).transpose(1, 2).to(rows.dtype)

    def after(count: int) -> State:
        width = layer.conv_kernel_size
        return window_after(joined, width, count), memory_after(memory, written, count)

    return read, after


def _by_head(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[b, n, heads * size] as [b, heads, n, size]."""
    return rows.unflatten(-1, (-1, size)).transpose(1, 2)


def _unit(rows: torch.Tensor) -> torch.Tensor:
    """Rows of length 1 along the last axis."""
    return rows * torch.rsqrt((rows * rows).sum(dim=-1, keepdim=True) + 1e-6)


def _qwen_run(project: Callable[[Any, torch.Tensor], _Delta]) -> Callable[..., Any]:
    def run(layer: Any, rows: torch.Tensor, state: State) -> tuple[torch.Tensor, After]:
        projected = project(layer, rows)
        read, after = _delta_run(projected, layer, rows, state)
        normed = _gated(layer.norm, read, projected.gate)
        return layer.out_proj(normed), after

    return run


def _olmo_run(layer: Any, rows: torch.Tensor, state: State) -> tuple[torch.Tensor, After]:
    projected = _olmo(layer, rows)
    read, after = _delta_run(projected, layer, rows, state)
    return layer.o_proj(_gated(layer.o_norm, read, projected.gate)), after


def _gated(norm: Any, read: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """What heads read [b, n, heads, dim], normed and gated: [b, n, heads * dim]."""
    size = read.shape[-1]
    return norm(read.reshape(-1, size), gate.reshape(-1, size)).reshape(*read.shape[:2], -1)


# Mamba2. State: window [b, w - 1, channels] and memory, float32 [b, heads, state size, head dim].


def _mamba2_start(layer: Any) -> State:
    return (
        _zeros(layer.in_proj.weight, layer.conv_kernel_size - 1, layer.conv_dim),
        _zeros(
            layer.in_proj.weight,
            layer.num_heads,
            layer.ssm_state_size,
            layer.head_dim,
            dtype=torch.float32,
        ),
    )


def _mamba2_run(layer: Any, rows: torch.Tensor, state: State) -> tuple[torch.Tensor, After]:
    window, memory = state
    gate, mixed, step = _mamba2_projected(layer, rows)
    sums, joined = convolve(window, mixed, layer.conv1d.weight[:, 0], layer.conv1d.bias)
    mixed = layer.act(sums).to(rows.dtype).float()
    wide = layer.n_groups * layer.ssm_state_size
    given, key, query = mixed.split([layer.intermediate_size, wide, wide], dim=-1)
    given = _by_head(given, layer.head_dim)
    repeats = layer.num_heads // layer.n_groups
    key, query = (
        _by_head(part, layer.ssm_state_size).repeat_interleave(repeats, dim=1)
        for part in (key, query)
    )
    step = functional.softplus(step.float() + layer.dt_bias.float()).clamp(*_limits(layer)).mT
    decays = -layer.A_log.float().exp()[:, None] * step
    written = Written(decays, key, given * step[..., None])
    read = recall(memory, written, query) + layer.D.float()[:, None, None] * given
    read = read.transpose(1, 2).flatten(2)
    norm = getattr(layer, "norm", None)  # Falcon-H1 may have none
    gated = read * functional.silu(gate.float()) if norm is None else norm(read, gate)
    done = layer.out_proj(gated.reshape(read.shape).to(rows.dtype))

    def after(count: int) -> State:
        width = layer.conv_kernel_size
        return window_after(joined, width, count), memory_after(memory, written, count)

    return done, after


def _mamba2_projected(layer: Any, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gate [b, n, inner], what is convolved [b, n, channels] and time steps [b, n, heads]."""
    if hasattr(layer, "mup_vector"):  # Falcon-H1's multipliers
        projected = layer.in_proj(rows * layer.ssm_in_multiplier) * layer.mup_vector
    else:
        projected = layer.in_proj(rows)
    return projected.split([layer.intermediate_size, layer.conv_dim, layer.num_heads], dim=-1)


def _limits(layer: Any) -> tuple[float, float]:
    """Bounds of a time step, as transformers has them for the kind of layer."""
    if type(layer).__name__ in ("NemotronHMamba2Mixer", "Zamba2MambaMixer"):
        return layer.time_step_min, float("inf")
    return layer.time_step_limit


_SHORT = Recurrence(_short_start, _short_run)
_QWEN3_5 = Recurrence(_delta_start, _qwen_run(_qwen3_5))
_MAMBA2 = Recurrence(_mamba2_start, _mamba2_run)

#: By the name of transformers' class.
RECURRENCES: Mapping[str, Recurrence] = {
    "Lfm2ShortConv": _SHORT,
    "Lfm2MoeShortConv": _SHORT,
    "Qwen3NextGatedDeltaNet": Recurrence(_delta_start, _qwen_run(_qwen3_next)),
    "Qwen3_5GatedDeltaNet": _QWEN3_5,
    "Qwen3_5MoeGatedDeltaNet": _QWEN3_5,
    "OlmoHybridGatedDeltaNet": Recurrence(_delta_start, _olmo_run),
    "Mamba2Mixer": _MAMBA2,
    "BambaMixer": _MAMBA2,
    "GraniteMoeHybridMambaLayer": _MAMBA2,
    "FalconH1Mixer": _MAMBA2,
    "NemotronHMamba2Mixer": _MAMBA2,
    "Zamba2MambaMixer": _MAMBA2,
}
