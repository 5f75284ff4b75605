"""A causal convolution over the last rows of each channel, whose state is a window of rows."""

import torch


def convolve(
    window: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of n new rows [b, n, c] behind a window [b, w - 1, c], with weights [c, w] and biases [c]:
    the sums, float32 [b, n, c], and window and rows beside one another [b, w - 1 + n, c].

    A row's sum is added up in the same order whatever n is.
    """
    joined = torch.cat([window.to(rows.dtype), rows], dim=1)
    seen, taps = joined.float(), weight.float()
    n, width = rows.shape[1], weight.shape[1]
    sums = seen[:, :n] * taps[:, 0]
    for tap in range(1, width):
        sums = torch.addcmul(sums, seen[:, tap : tap + n], taps[:, tap])
    return (sums if bias is None else sums + bias.float()), joined


def window_after(joined: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """The window [b, width - 1, c] behind `count` of the new rows that `convolve` joined to one."""
    return joined[:, count : count + width - 1].clone()
