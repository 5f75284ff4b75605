"""The sizes of a trained head, read from the target's configuration."""

from dataclasses import dataclass
from typing import Any

#: Rows of a head's cache beside those that it attends to. A round's guesses lie there, behind the
#: text: more of them than this would displace rows that the text still needs.
SPARE = 32


@dataclass(frozen=True, slots=True)
class HeadShape:
    """`hidden`, the head counts and so on are the target's, the rest the head's own: how many
    `layers` it has, and which of them, from 0, read the target's features.

    It attends to the last `window` tokens only, so its cost does not grow with the context.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float
    theta: float
    layers: int
    reads: tuple[int, ...]
    window: int = 256

    @property
    def slots(self) -> int:
        """Rows of its cache."""
        return self.window + SPARE

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


def shape_of(config: dict[str, Any], layers: int, reads: tuple[int, ...]) -> HeadShape:
    """The head that suits a Llama-shaped target with this config.json."""
    heads = config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    return HeadShape(
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        eps=config["rms_norm_eps"],
        theta=config.get("rope_theta") or rope["rope_theta"],
        layers=layers,
        reads=reads,
    )
