"""A residual language model over any list of sequence layers.

Training, prefill, chunked prefill and decoding are one call: they differ in the number of tokens
and in whether a state is passed in.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.array_types import (
    Addresses,
    Hidden,
    Logits,
    Positions,
    RowCounts,
    SegmentIds,
    Tokens,
)
from bayesmem.layers.interface import check_per_token, mask_padding
from bayesmem.layers.linear import parameter
from bayesmem.layers.norm import RMSNorm
from bayesmem.layers.rotary import document_positions, next_position
from bayesmem.layers.swiglu import SwiGLU
from bayesmem.models.config import ModelConfig
from bayesmem.models.rows import take_rows


class LMState(NamedTuple):
    """State of a language model after the last valid token of each row.

    Attributes:
      layers: the state of every layer's mixer.
      position: [B] int32, position of the next token in its document.
    """

    layers: tuple[Any, ...]
    position: RowCounts


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

    @nn.compact
    def __call__(
        self,
        x: Hidden,
        state: Any,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        addresses: Addresses | None = None,
    ) -> tuple[Hidden, Any]:
        """Returns the block's output [B, T, W] and its mixer's state; arguments as in `Mixer`."""
        config = self.config
        mixer = config.build_mixer(self.layer, name="mixer", parent=self)
        y, state = mixer(
            RMSNorm(config.norm_eps, name="mixer_norm")(x),
            state,
            segment_ids=segment_ids,
            positions=positions,
            addresses=addresses,
        )
        x = x + y
        if config.mlp_width:
            mlp = SwiGLU(config.width, config.mlp_width, config.compute_dtype, name="mlp")
            x = x + mlp(RMSNorm(config.norm_eps, name="mlp_norm")(x))
        return x, state


class LanguageModel(nn.Module):
    """Embedding, residual blocks, final norm and head.

    Attributes:
      config: what the model is made of.
    """

    config: ModelConfig

    def setup(self):
        """Makes the submodules."""
        config = self.config
        block = nn.remat(Block) if config.remat else Block
        table = (config.padded_vocab_size, config.width, config.compute_dtype)
        self.embedding = TokenTable(*table, repeatable=config.repeatable)
        self.blocks = [block(config, layer) for layer in range(config.num_layers)]
        self.final_norm = RMSNorm(config.norm_eps)
        self.head = self.embedding if config.tie_embeddings else TokenTable(*table)

    def __call__(
        self,
        tokens: Tokens,
        state: LMState | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
    ) -> tuple[Logits, LMState]:
        """Returns the logits of the next token at every token, and the state after the last.

        Args:
          tokens: [B, T] int32.
          state: where to go on; None for a fresh start.
          segment_ids: [B, T] int32 or None: documents of a packed row, negative for padding (see
            `bayesmem.ops.segments`). Logits at padding are zero.
          positions: [B, T] int32; None to count from the start of each document.

        Returns:
          logits [B, T, V] float32 and the state.
        """
        h, state = self.hidden_states(tokens, state, segment_ids=segment_ids, positions=positions)
        return self.logits(h), state

    def hidden_states(
        self,
        tokens: Tokens,
        state: LMState | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
    ) -> tuple[Hidden, LMState]:
        """Returns the activations after the final norm [B, T, W], and the state; see `__call__`."""
        check_per_token("tokens", tokens)
        layers = (None,) * self.config.num_layers if state is None else state.layers
        offset = jnp.zeros(tokens.shape[0], jnp.int32) if state is None else state.position
        positions = document_positions(tokens.shape, segment_ids, offset, positions)
        x = mask_padding(self.embedding.embed(tokens), segment_ids)
        new = []
        for block, layer_state in zip(self.blocks, layers, strict=True):
            x, layer_state = block(x, layer_state, segment_ids, positions)
            new.append(layer_state)
        position = next_position(positions, segment_ids, offset)
        return self.final_norm(x), LMState(tuple(new), position)

    def logits(self, h: Float[Array, "... W"]) -> Float[Array, "... V"]:
        """Returns the float32 logits of final activations, without the padded rows."""
        return self.head.scores(h)[..., : self.config.vocab_size]

    @nn.nowrap
    def init_state(self, batch: int) -> LMState:
        """Returns the state of `batch` rows that have read nothing."""
        layers = (
            self.config.build_mixer(layer, parent=None).init_state(batch)
            for layer in range(self.config.num_layers)
        )
        return LMState(tuple(layers), jnp.zeros(batch, jnp.int32))
