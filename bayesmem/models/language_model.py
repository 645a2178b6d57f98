"""A residual language model over any list of sequence layers.

Training, prefill, chunked prefill and decoding are one call: they differ in the number of tokens
and in whether a state is passed in.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bayesmem.array_types import (
    Hidden,
    Logits,
    Positions,
    RowCounts,
    SegmentIds,
    Tokens,
)
from bayesmem.layers.interface import check_per_token, mask_padding
from bayesmem.layers.norm import RMSNorm
from bayesmem.layers.rotary import document_positions, next_position
from bayesmem.models.blocks import TokenTable, make_blocks, scan_blocks, stack_states
from bayesmem.models.config import ModelConfig


class LMState(NamedTuple):
    """State of a language model after the last valid token of each row.

    Attributes:
      layers: the state of every layer's mixer.
      position: [B] int32, position of the next token in its document.
    """

    layers: tuple[Any, ...]
    position: RowCounts


class LanguageModel(nn.Module):
    """Embedding, residual blocks, final norm and head.

    Attributes:
      config: what the model is made of.
    """

    config: ModelConfig

    def setup(self):
        """Makes the submodules."""
        config = self.config
        table = (config.padded_vocab_size, config.width, config.compute_dtype)
        self.embedding = TokenTable(*table, repeatable=config.repeatable)
        if config.scan_layers:
            self.layers = scan_blocks(config)
        else:
            self.blocks = make_blocks(config)
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
        offset = jnp.zeros(tokens.shape[0], jnp.int32) if state is None else state.position
        positions = document_positions(tokens.shape, segment_ids, offset, positions)
        x = mask_padding(self.embedding.embed(tokens), segment_ids)
        x, layers = self._run_blocks(x, state and state.layers, segment_ids, positions)
        position = next_position(positions, segment_ids, offset)
        return self.final_norm(x), LMState(layers, position)

    def _run_blocks(
        self, x: Hidden, layers: Any, segment_ids: SegmentIds | None, positions: Positions
    ) -> tuple[Hidden, tuple[Any, ...]]:
        """Runs all blocks from the states of their layers, None for fresh ones."""
        if self.config.scan_layers:
            return self.layers(x, layers, segment_ids, positions, None)
        new = []
        for layer, block in enumerate(self.blocks):
            x, state = block(x, layers and layers[layer], segment_ids, positions)
            new.append(state)
        return x, tuple(new)

    def logits(self, h: Float[Array, "... W"]) -> Float[Array, "... V"]:
        """Returns the float32 logits of final activations, without the padded rows."""
        return self.head.scores(h)[..., : self.config.vocab_size]

    @nn.nowrap
    def init_state(self, batch: int) -> LMState:
        """Returns the state of `batch` rows that have read nothing."""
        config = self.config
        count = len(config.mixers) if config.scan_layers else config.num_layers
        layers = tuple(
            config.build_mixer(layer, parent=None).init_state(batch) for layer in range(count)
        )
        if config.scan_layers:
            layers = stack_states(layers, config.num_layers // count)
        return LMState(layers, jnp.zeros(batch, jnp.int32))
