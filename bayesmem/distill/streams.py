"""Teacher and student read one batch: what of it is the same is run once.

Embedding, frozen layers and head have the same parameters in both. Phase A runs the teacher's
stream alone, each replaced layer beside its own on the same input. Phase B runs both streams, and
one up to the first replaced layer. No activation outlives the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayesmem.distill.replacement import Pair
from bayesmem.layers.interface import mask_padding
from bayesmem.layers.rotary import document_positions
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.models.blocks import Block

PyTree = Any
Batch = Mapping[str, jax.Array]


class Matches(NamedTuple):
    """Sums over valid tokens and channels, for each replaced layer [R], rising.

    Attributes:
      error: squared differences of the student's activations from the teacher's.
      total: the teacher's activations.
      square: their squares.
    """

    error: jax.Array
    total: jax.Array
    square: jax.Array


class Reader:
    """Runs the blocks of a pair on one batch.

    Attributes:
      pair: teacher and student.
      ids: segment_ids [B, T] or None.
      positions: [B, T] int32.
      valid: bool [B, T, 1].
    """

    def __init__(self, pair: Pair, batch: Batch) -> None:
        """Takes documents and positions from a batch."""
        tokens = batch["inputs"]
        self.pair, self.ids = pair, batch.get("segment_ids")
        start = jnp.zeros(tokens.shape[0], jnp.int32)
        self.positions = document_positions(tokens.shape, self.ids, start, None)
        # Negative ids are padding.
        self.valid = (jnp.zeros_like(tokens) if self.ids is None else self.ids)[..., None] >= 0

    def embed(self, params: PyTree, tokens: jax.Array) -> jax.Array:
        """Returns the embeddings [B, T, W]."""
        model = LanguageModel(self.pair.student)
        x = model.apply({"params": params}, tokens, method=lambda own, t: own.embedding.embed(t))
        return mask_padding(x, self.ids)  # type: ignore[arg-type]

    def block(self, config: ModelConfig, place: int, params: PyTree, x: jax.Array) -> jax.Array:
        """Returns the output of a whole block."""

        def run(params: PyTree, x: jax.Array) -> Any:
            own = Block(config, place)
            return own.apply({"params": params}, x, None, self.ids, self.positions)

        return (jax.checkpoint(run) if config.remat else run)(params, x)[0]

    def part(self, name: str, place: int, params: PyTree, x: jax.Array) -> jax.Array:
        """Returns what a method of a block of the teacher gives."""
        own: Any = Block(self.pair.teacher, place)
        return own.apply({"params": params}, x, method=name)

    def mix(self, config: ModelConfig, place: int, params: PyTree, x: jax.Array) -> jax.Array:
        """Returns the output of a block's mixer on its input."""

        def run(params: PyTree, x: jax.Array) -> Any:
            mixer = config.build_mixer(place, parent=None)
            ids, positions = self.ids, self.positions
            return mixer.apply({"params": params}, x, segment_ids=ids, positions=positions)

        return (jax.checkpoint(run) if config.remat else run)(params, x)[0]

    def compare(self, student: jax.Array, teacher: jax.Array) -> Matches:
        """Returns the sums for one layer []."""
        student, teacher = student.astype(jnp.float32), teacher.astype(jnp.float32)
        sums = (jnp.square(student - teacher), teacher, jnp.square(teacher))
        return Matches(*(jnp.sum(x, where=self.valid) for x in sums))


def match_layers(pair: Pair, params: PyTree, given: PyTree, batch: Batch) -> Matches:
    """Compares each replaced layer's output with the teacher's, on the teacher's own input.

    Args:
      pair: teacher and student.
      params: the student's, unboxed.
      given: parameters of the teacher's replaced mixers, `block_N` to a tree [turns, ...].
      batch: `inputs` int [B, T], optionally `segment_ids` int [B, T].

    Returns:
      The sums of the mixers' outputs.
    """
    reader = Reader(pair, batch)

    def turn(x: jax.Array, trees: tuple[PyTree, PyTree]) -> tuple[jax.Array, list[Matches]]:
        own, theirs = trees
        found = []
        for place in range(pair.period):
            name, block = f"block_{place}", own[f"block_{place}"]
            if place not in pair.places:
                x = reader.block(pair.teacher, place, block, x)
                continue
            frozen = {part: block[part] for part in block if part != "mixer"}
            read = reader.part("mixer_input", place, frozen, x)
            wanted = reader.mix(pair.teacher, place, theirs[name], read)
            y = reader.mix(pair.student, place, block["mixer"], read)
            found.append(reader.compare(y, wanted))
            x = reader.part("feed_forward", place, frozen, x + wanted)
        return x, found

    x = reader.embed(params, batch["inputs"])
    _, found = jax.lax.scan(turn, x, (params["layers"], given))
    return _in_order(found)


def match_streams(
    pair: Pair, params: PyTree, given: PyTree, batch: Batch
) -> tuple[jax.Array, jax.Array, Matches]:
    """Runs both models; arguments as in `match_layers`.

    Returns:
      Activations after the final norm [B, T, W] of teacher and student, and the sums of the streams
      after each replaced layer's block.
    """
    reader = Reader(pair, batch)

    def turn(
        streams: tuple[jax.Array, jax.Array], trees: tuple[PyTree, PyTree]
    ) -> tuple[tuple[jax.Array, jax.Array], list[Matches]]:
        (teacher, student), (own, theirs) = streams, trees
        found = []
        for place in range(pair.period):
            name, block = f"block_{place}", own[f"block_{place}"]
            shared = student is teacher and place not in pair.places
            parts = block | {"mixer": theirs[name]} if place in pair.places else block
            teacher = reader.block(pair.teacher, place, parts, teacher)
            student = teacher if shared else reader.block(pair.student, place, block, student)
            if place in pair.places:
                found.append(reader.compare(student, teacher))
        return (teacher, student), found

    def at(first: int | slice) -> tuple[PyTree, PyTree]:
        return jax.tree.map(lambda x: x[first], (params["layers"], given))

    x = reader.embed(params, batch["inputs"])
    streams, first = turn((x, x), at(0))
    streams, later = jax.lax.scan(turn, streams, at(slice(1, None)))
    found = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)
    model: Any = LanguageModel(pair.student)
    teacher, student = (
        model.apply({"params": params}, x, method=lambda own, h: own.final_norm(h)) for x in streams
    )
    return teacher, student, _in_order(found)


def _in_order(found: list[Matches]) -> Matches:
    """Sums [turns] of each place in a turn -> sums [R] of all layers, rising."""
    return jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1), *found)
