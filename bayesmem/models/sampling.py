"""From logits to the next token: greedy, temperature, top-k and top-p; pure functions, float32."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bayesmem.layers.options import require_number, require_positive

RowLogits = Float[Array, "B V"]
RowKeys = Key[Array, " B"]


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    The limits act in this order: vocab_size, temperature, top_k, top_p of what top_k has left.

    Attributes:
      temperature: divisor of the logits, >= 0; 0 takes the most probable token, and of equal ones
        the lowest id.
      top_k: how many of the most probable tokens may be drawn, of equal ones the lowest ids first;
        None, or more than there are: all.
      top_p: the most probable tokens are kept up to the first at which their probabilities sum to
        at least top_p (nucleus sampling, arXiv 1904.09751), in (0, 1]; 1: all.
      vocab_size: ids that the tokenizer has; what the model's table holds beyond them is never
        drawn. None: all logits.

    Raises:
      ValueError: a value does not fit; names what was found and wanted.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    vocab_size: int | None = None

    def __post_init__(self):
        """Checks the values."""
        require_number("temperature", self.temperature, 0.0, math.inf)
        for name in ("top_k", "vocab_size"):
            if getattr(self, name) is not None:
                require_positive(**{name: getattr(self, name)})
        require_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise ValueError("top_p: found 0, wanted a number in (0, 1]")


GREEDY = Sampling(temperature=0.0)
"""The most probable token, always."""


def row_keys(seed: int, batch: int) -> RowKeys:
    """Returns a key for each row; that of row i depends on the seed and i alone.

    Args:
      seed: any whole number that an int64 holds.
      batch: B.
    """
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed: found {seed}, wanted a whole number that an int64 holds")
    key = jax.random.key(seed)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(batch))


def limited_logits(logits: RowLogits, sampling: Sampling) -> RowLogits:
    """Returns logits of the distribution that is drawn from: [B, vocab_size] float32.

    The largest of each row is 0, and what may not be drawn has -inf.

    Args:
      logits: [B, V], V >= 1, of any floating-point dtype.
      sampling: with a temperature above 0.
    """
    logits = logits[:, : sampling.vocab_size].astype(jnp.float32)
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    # After the shift, so that no temperature, however small, makes an infinity of the largest one.
    logits = logits / sampling.temperature
    size = logits.shape[-1]
    top_k = size if sampling.top_k is None else min(sampling.top_k, size)
    if top_k == size and sampling.top_p == 1:
        return logits
    order = jnp.argsort(logits, axis=-1, descending=True, stable=True)
    rank = jnp.argsort(order, axis=-1)
    logits = jnp.where(rank < top_k, logits, -jnp.inf)
    if sampling.top_p < 1:
        falling = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), order, axis=-1)
        above = jnp.cumsum(falling, axis=-1) - falling  # of the more probable tokens
        keep = jnp.take_along_axis(above < sampling.top_p, rank, axis=-1) | (rank == 0)
        logits = jnp.where(keep, logits, -jnp.inf)
    return logits


def sample(keys: RowKeys, logits: RowLogits, sampling: Sampling) -> Int[Array, " B"]:
    """Draws a token for each row; a row's token depends on its own key and logits alone.

    Args:
      keys: [B] typed keys; not read by greedy choice.
      logits: [B, V], V >= 1.
      sampling: how to choose.

    Returns:
      [B] int32 ids below min(V, vocab_size); -1 for a row whose logits hold a NaN or whose largest
      is infinite, for which there is no distribution.
    """
    allowed = logits[:, : sampling.vocab_size].astype(jnp.float32)
    if sampling.temperature == 0:
        chosen = jnp.argmax(allowed, axis=-1)
    else:
        chosen = jax.vmap(jax.random.categorical)(keys, limited_logits(logits, sampling))
    usable = jnp.isfinite(jnp.max(allowed, axis=-1))
    return jnp.where(usable, chosen, -1).astype(jnp.int32)
