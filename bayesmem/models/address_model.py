"""A residual model over tokens that are vectors and bring their keys with them."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bayesmem.array_types import Addresses, Hidden, Logits, SegmentIds
from bayesmem.layers.interface import check_per_token, check_vectors, mask_padding
from bayesmem.layers.linear import linear
from bayesmem.layers.norm import RMSNorm
from bayesmem.models.blocks import TokenTable, make_blocks
from bayesmem.models.config import ModelConfig


class AddressModel(nn.Module):
    """Input projection, residual blocks that read and write at given addresses, norm and head.

    The model of the learned-collision and random-key experiments of "Memory by Design"
    (arXiv 2605.31163): the address is key and query of every head in every layer, so that models
    differ by their rule of writing alone. There are no positions.

    Attributes:
      config: what the model is made of; `vocab_size` is the number of labels. Its mixers are
        recurrent ones without short convolution.
    """

    config: ModelConfig

    def __post_init__(self):
        """Checks that there is no embedding to be tied, and that blocks are apart."""
        super().__post_init__()
        if self.config.scan_layers:
            raise ValueError("scan_layers: found True, wanted False with addresses")
        if self.config.tie_embeddings:
            raise ValueError(
                "tie_embeddings: found True, wanted False: tokens are vectors, without embedding"
            )

    def setup(self):
        """Makes the submodules."""
        config = self.config
        self.input = linear(config.width, (None, "embed"), "input", dtype=config.compute_dtype)
        self.blocks = make_blocks(config)
        self.final_norm = RMSNorm(config.norm_eps)
        self.head = TokenTable(config.padded_vocab_size, config.width, config.compute_dtype)

    def __call__(
        self,
        tokens: Float[Array, "B T F"],
        addresses: Addresses,
        *,
        segment_ids: SegmentIds | None = None,
    ) -> Logits:
        """Returns the logits of the labels at every token, [B, T, V] float32; zero at padding.

        Args:
          tokens: [B, T, F], any number of features F.
          addresses: [B, T, D] of unit length; D is the key dimension of every mixer.
          segment_ids: [B, T] int32 or None: documents of a packed row, negative for padding.

        Raises:
          ValueError: a shape or dtype does not fit, or a mixer cannot use addresses.
        """
        return self.logits(self.hidden_states(tokens, addresses, segment_ids=segment_ids))

    def at_queries(
        self,
        tokens: Float[Array, "B T F"],
        addresses: Addresses,
        query_positions: Int[Array, "B Q"],
        *,
        segment_ids: SegmentIds | None = None,
    ) -> Float[Array, "B Q V"]:
        """Returns the logits at some tokens of each row only, [B, Q, V] float32.

        Args:
          tokens: [B, T, F].
          addresses: [B, T, D], see `__call__`.
          query_positions: [B, Q] int32, 0-based tokens of the row.
          segment_ids: [B, T] int32 or None, see `__call__`.

        Raises:
          ValueError: as in `__call__`, or query_positions is not an integer array [B, Q].
        """
        check_per_token("query_positions", query_positions, tokens.shape[:1], "B Q")
        h = self.hidden_states(tokens, addresses, segment_ids=segment_ids)
        return self.logits(jnp.take_along_axis(h, query_positions[..., None], axis=1))

    def hidden_states(
        self,
        tokens: Float[Array, "B T F"],
        addresses: Addresses,
        *,
        segment_ids: SegmentIds | None = None,
    ) -> Hidden:
        """Returns the activations after the final norm, [B, T, W]; see `__call__`."""
        check_vectors("tokens", tokens)
        if segment_ids is not None:
            check_per_token("segment_ids", segment_ids, tokens.shape[:2])
        x = self.input(mask_padding(tokens, segment_ids))
        for block in self.blocks:
            x, _ = block(x, None, segment_ids, None, addresses)
        return self.final_norm(x)

    def logits(self, h: Float[Array, "... W"]) -> Float[Array, "... V"]:
        """Returns the float32 logits of final activations, without the padded rows."""
        return self.head.scores(h)[..., : self.config.vocab_size]
