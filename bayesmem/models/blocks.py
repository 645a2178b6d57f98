"""What models are made of: the table of tokens, and residual blocks one by one or scanned."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.array_types import Addresses, Hidden, Positions, SegmentIds, Tokens
from bayesmem.layers.linear import parameter
from bayesmem.layers.norm import RMSNorm
from bayesmem.layers.swiglu import SwiGLU
from bayesmem.models.config import ModelConfig
from bayesmem.models.rows import take_rows

_SAVED: dict[str, Callable[..., bool] | None] = {
    "nothing": None,
    "projections": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "products": jax.checkpoint_policies.dots_saveable,
}
"""Policies of `ModelConfig.remat_saves`, for `jax.checkpoint`."""


class TokenTable(nn.Module):
    """One vector a token: read as embeddings, or as the weights of the logits.

    Attributes:
      rows: number of vectors, the padded vocabulary.
      width: W.
      dtype: dtype of the vectors read and of the logits' factors.
      repeatable: whether gradients of vectors read are summed in one order, see `models.rows`.
    """

    rows: int
    width: int
    dtype: Any
    repeatable: bool = False

    def setup(self):
        """Makes the float32 table [rows, W]."""
        init = nn.initializers.normal(0.02)
        self.table = parameter(self, "table", init, ("vocab", "embed"), (self.rows, self.width))

    def embed(self, tokens: Tokens) -> Hidden:
        """Returns the vectors of the tokens [B, T, W]."""
        if self.repeatable:
            return take_rows(self.table, tokens).astype(self.dtype)
        return jnp.take(self.table, tokens, axis=0).astype(self.dtype)

    def scores(self, h: Float[Array, "... W"]) -> Float[Array, "... rows"]:
        """Returns the product with every vector [..., rows], accumulated in float32."""
        factors = h.astype(self.dtype), self.table.astype(self.dtype)
        return jnp.einsum("...w,vw->...v", *factors, preferred_element_type=jnp.float32)


class Block(nn.Module):
    """x + mixer(norm(x)), then x + SwiGLU(norm(x)).

    Attributes:
      config: the model's configuration.
      layer: index of the block, which decides its mixer.
    """

    config: ModelConfig
    layer: int

    def setup(self):
        """Makes the submodules."""
        config = self.config
        self.mixer_norm = RMSNorm(config.norm_eps)
        self.mixer = config.build_mixer(self.layer, parent=None)
        if config.mlp_width:
            self.mlp_norm = RMSNorm(config.norm_eps)
            self.mlp = SwiGLU(config.width, config.mlp_width, config.compute_dtype)

    def __call__(
        self,
        x: Hidden,
        state: Any,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        addresses: Addresses | None = None,
    ) -> tuple[Hidden, Any]:
        """Returns the block's output [B, T, W] and its mixer's state; arguments as in `Mixer`."""
        y, state = self.mixer(
            self.mixer_input(x),
            state,
            segment_ids=segment_ids,
            positions=positions,
            addresses=addresses,
        )
        return self.feed_forward(x + y), state

    def mixer_input(self, x: Hidden) -> Hidden:
        """Returns what the mixer reads [B, T, W] of the residual stream."""
        return self.mixer_norm(x)

    def feed_forward(self, x: Hidden) -> Hidden:
        """Returns the block's output [B, T, W] from the stream with the mixer's output added."""
        return x + self.mlp(self.mlp_norm(x)) if self.config.mlp_width else x


class Period(nn.Module):
    """The blocks of one turn of the mixers.

    Attributes:
      config: the model's configuration.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Hidden,
        states: tuple[Any, ...] | None,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        addresses: Addresses | None,
    ) -> tuple[Hidden, tuple[Any, ...]]:
        """Returns the output [B, T, W] and the states of the mixers; arguments as in `Block`."""
        block, new = _block(self.config), []
        for layer in range(len(self.config.mixers)):
            module = block(self.config, layer, name=f"block_{layer}")
            state = None if states is None else states[layer]
            x, state = module(x, state, segment_ids, positions, addresses)
            new.append(state)
        return x, tuple(new)


def make_blocks(config: ModelConfig) -> list[nn.Module]:
    """Returns the blocks of a model, each with parameters of its own."""
    block = _block(config)
    return [block(config, layer) for layer in range(config.num_layers)]


def scan_blocks(config: ModelConfig) -> nn.Module:
    """Returns one module that runs all turns of the mixers, one after the other.

    Its parameters, and the states that it takes and returns, are those of `Period` with a first
    axis: one entry a turn. One turn is compiled, however many there are.
    """
    scanned = nn.scan(
        Period,
        variable_axes={"params": 0, "losses": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
        length=config.num_layers // len(config.mixers),
        metadata_params={nn.PARTITION_NAME: None},
    )
    return scanned(config)


def stack_states(states: tuple[Any, ...], turns: int) -> tuple[Any, ...]:
    """Returns states of a turn's mixers with a first axis [turns], the same in all turns."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (turns, *x.shape)), states)


def _block(config: ModelConfig) -> Any:
    """The class of a model's blocks."""
    if not config.remat:
        return Block
    # Within a scan nothing is there twice that a compiler could join.
    return nn.remat(Block, policy=_SAVED[config.remat_saves], prevent_cse=not config.scan_layers)
