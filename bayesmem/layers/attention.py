"""Softmax attention with rotary positions and a cache of keys and values."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bayesmem.array_types import Addresses, Hidden, Keys, Positions, RowCounts, SegmentIds
from bayesmem.layers.heads import HEAD_AXES
from bayesmem.layers.interface import check_input, mask_padding, reject_addresses
from bayesmem.layers.linear import linear
from bayesmem.layers.options import (
    HeadLayout,
    default_head_dim,
    require_choice,
    require_number,
    require_positive,
)
from bayesmem.layers.rotary import document_positions, next_position, rotate
from bayesmem.ops.segments import document_starts, valid_steps

IMPLEMENTATIONS = ("auto", "cudnn", "xla")


class KVCache(NamedTuple):
    """Keys and values of the valid tokens read so far, in the order they were read.

    Attributes:
      key: [B, S, Hk, D] in the layer's dtype, rotated.
      value: [B, S, Hk, D] in the layer's dtype.
      document: [B, S] int32, 0-based count of the documents of the row; -1 where the slot is empty.
      length: [B] int32, tokens read. Counts on past the capacity S, so that an overflow stays seen.
      position: [B] int32, position of the next token in its document.
    """

    key: Float[Array, "B S Hk D"]
    value: Float[Array, "B S Hk D"]
    document: Int[Array, "B S"]
    length: RowCounts
    position: RowCounts


class Attention(nn.Module):
    """softmax(q k^T D^-0.5) v over the earlier tokens of the document, with rotary q and k.

    A call that fills the cache beyond `max_length` raises outside of `jit`. Inside of it, where the
    number of cached tokens is not known, the tokens beyond the capacity read NaN.

    Attributes:
      width: W.
      num_heads: heads of queries.
      num_kv_heads: heads of keys and values, a divisor of num_heads; None for num_heads.
      head_dim: D, even; None for width / num_heads.
      max_length: capacity S of the cache in valid tokens, over all documents of a row.
      rope_theta: base of the rotation's wavelengths.
      implementation: "xla" holds the weights [B, Hq, T, S]; "cudnn" is NVIDIA's fused kernel, for a
        GPU and 16-bit activations, and reads tokens that need a cache by "xla" all the same; "auto"
        is "cudnn" where it can be. JAX cannot `vmap` the gradient of that kernel with documents.
      dtype: dtype of the activations and the cache; parameters are float32.
    """

    width: int
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    max_length: int = 2048
    rope_theta: float = 10000.0
    implementation: str = "xla"
    dtype: Any = jnp.float32

    def __post_init__(self):
        """Checks the sizes."""
        super().__post_init__()
        require_positive(max_length=self.max_length)
        if self.num_kv_heads is not None:
            require_positive(num_kv_heads=self.num_kv_heads, num_heads=self.num_heads)
            if self.num_heads % self.num_kv_heads:
                raise ValueError(
                    f"num_kv_heads: found {self.num_kv_heads}, wanted one that the "
                    f"{self.num_heads} heads are a multiple of"
                )
        require_number("rope_theta", self.rope_theta, 1.0, 1e12)
        require_choice("implementation", self.implementation, IMPLEMENTATIONS)
        _ = self.layout
        if self.implementation == "cudnn" and (reason := self._unfused):
            raise ValueError(f"implementation: found 'cudnn', wanted 'xla' or 'auto': {reason}")

    @property
    def layout(self) -> HeadLayout:
        """Numbers and sizes; here `key_heads` serve keys and values, `value_heads` queries."""
        head_dim = default_head_dim(self.width, self.num_heads, self.head_dim)
        kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        return HeadLayout(kv_heads, self.num_heads, head_dim, head_dim, positions=True)

    @property
    def _unfused(self) -> str:
        """Why cuDNN's kernel cannot run this layer here, or nothing."""
        dim = self.layout.key_dim
        if jax.default_backend() != "gpu":
            return f"it needs a GPU and the JAX backend found is {jax.default_backend()!r}"
        if jnp.dtype(self.dtype).itemsize != 2:
            return f"it needs 16-bit activations, found {jnp.dtype(self.dtype).name}"
        if dim % 8 or dim > 128:
            return f"it needs a head_dim that is a multiple of 8 up to 128, found {dim}"
        return ""

    @nn.nowrap
    def init_state(self, batch: int) -> KVCache:
        """Returns an empty cache for `batch` rows."""
        layout = self.layout
        empty = jnp.zeros((batch, self.max_length, layout.key_heads, layout.key_dim), self.dtype)
        document = jnp.full((batch, self.max_length), -1, jnp.int32)
        zero = jnp.zeros(batch, jnp.int32)
        return KVCache(empty, empty, document, zero, zero)

    @nn.compact
    def __call__(
        self,
        x: Hidden,
        state: KVCache | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        addresses: Addresses | None = None,
    ) -> tuple[Hidden, KVCache]:
        """Returns the layer's output [B, T, W] and the cache after it; see `Mixer`.

        Raises:
          ValueError: T, or (outside of `jit`) the tokens cached and new, exceed `max_length`; or
            there are addresses, which this layer cannot use.
        """
        reject_addresses("attention", addresses)
        check_input(x, self.width, segment_ids)
        batch, steps, _ = x.shape
        _require_capacity(self.max_length, steps)
        fresh = state is None
        cache = self.init_state(batch) if state is None else state
        valid = jnp.ones((batch, steps), bool) if segment_ids is None else valid_steps(segment_ids)
        positions = document_positions((batch, steps), segment_ids, cache.position, positions)
        if steps and not fresh:
            _require_capacity(self.max_length, _most(cache.length + jnp.sum(valid, axis=1)))
        x = mask_padding(x, segment_ids)
        q, k, v = self._heads(x, positions)
        document = jnp.zeros((batch, steps), jnp.int32)
        if segment_ids is not None:
            document = jnp.cumsum(document_starts(segment_ids), axis=1, dtype=jnp.int32)
        slot = cache.length[:, None] + jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1
        # Documents are counted, not compared by id: the row's first one continues the cache's last.
        document += jnp.maximum(cache.document.max(axis=1), 0)[:, None]
        written = _write(cache, k, v, jnp.where(valid, slot, self.max_length), document)
        if fresh and steps > 1 and self.implementation != "xla" and not self._unfused:
            y = _fused(q, k, v, None if segment_ids is None else (document, valid))
        elif fresh:
            y = _attend(q, k, v, slot, document, slot, jnp.where(valid, document, -1))
        else:
            slots = jnp.broadcast_to(jnp.arange(self.max_length), written.document.shape)
            y = _attend(q, written.key, written.value, slot, document, slots, written.document)
        y = jnp.where((slot < self.max_length)[..., None, None], y, jnp.nan)
        y = mask_padding(y.reshape(batch, steps, self.num_heads * self.layout.key_dim), segment_ids)
        written = written._replace(
            length=cache.length + jnp.sum(valid, axis=1, dtype=jnp.int32),
            position=next_position(positions, segment_ids, cache.position),
        )
        return linear(self.width, HEAD_AXES[::-1], "out", dtype=self.dtype)(y), written

    def _heads(self, x: Hidden, positions: Positions) -> tuple[Keys, Keys, Keys]:
        layout = self.layout
        counts = {"query": layout.value_heads, "key": layout.key_heads, "value": layout.key_heads}
        q, k, v = (
            linear(count * layout.key_dim, HEAD_AXES, name, dtype=self.dtype)(x).reshape(
                *x.shape[:2], count, layout.key_dim
            )
            for name, count in counts.items()
        )
        return rotate(q, positions, self.rope_theta), rotate(k, positions, self.rope_theta), v


def _write(
    cache: KVCache, k: Keys, v: Keys, slot: Int[Array, "B T"], document: Int[Array, "B T"]
) -> KVCache:
    """Stores the new tokens in their slots; a slot past the end is dropped."""
    rows = jnp.arange(slot.shape[0])[:, None]
    return cache._replace(
        key=cache.key.at[rows, slot].set(k.astype(cache.key.dtype), mode="drop"),
        value=cache.value.at[rows, slot].set(v.astype(cache.value.dtype), mode="drop"),
        document=cache.document.at[rows, slot].set(document, mode="drop"),
    )


@jax.checkpoint
def _attend(
    q: Keys,
    k: Keys,
    v: Keys,
    q_slot: Int[Array, "B T"],
    q_document: Int[Array, "B T"],
    k_slot: Int[Array, "B S"],
    k_document: Int[Array, "B S"],
) -> Keys:
    """Attends to the keys of the query's document that were read no later than the query.

    The scores of all pairs are not kept for the backward pass.
    """
    earlier = k_slot[:, None, :] <= q_slot[:, :, None]
    mask = earlier & (k_document[:, None, :] == q_document[:, :, None])
    if q.shape[1] == 0:
        return q
    return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])


def _fused(
    q: Keys, k: Keys, v: Keys, packed: tuple[Int[Array, "B T"], Bool[Array, "B T"]] | None
) -> Keys:
    """Attends as `_attend` does where nothing is cached, by cuDNN.

    Args:
      q: [B, T, Hq, D].
      k: [B, T, Hk, D].
      v: [B, T, Hk, D].
      packed: number of each token's document and which tokens are valid; None for one document.

    Returns:
      [B, T, Hq, D].
    """
    steps, odd = q.shape[1], q.shape[1] % 2  # its gradient wants an even length
    q, k, v = (jnp.pad(x, ((0, 0), (0, odd), (0, 0), (0, 0))) for x in (q, k, v))
    mask = None
    if packed is not None:
        document, valid = (jnp.pad(x, ((0, 0), (0, odd))) for x in packed)
        same = document[:, :, None] == document[:, None, :]
        mask = (same & valid[:, None, :])[:, None]
    y = jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True, implementation="cudnn")
    return y[:, :steps]


def _require_capacity(capacity: int, wanted: int) -> None:
    if wanted > capacity:
        raise ValueError(
            f"max_length: the cache holds {capacity} tokens, wanted {wanted}; "
            f"build the layer with a larger max_length"
        )


def _most(counts: RowCounts) -> int:
    """Returns the largest count, or 0 where the counts are not known yet (inside of `jit`)."""
    try:
        return int(jnp.max(counts))
    except jax.errors.ConcretizationTypeError:
        return 0
