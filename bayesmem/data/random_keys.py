"""Random-key crowding: more keys than an address has dimensions, so that all of them interfere.

"Memory by Design" (arXiv 2605.31163), Figure 7. A row draws n unit keys in R^64 and writes a random
label for each; then it asks for some of them. Addresses are the keys seen through one projection
from R^64 to R^16, the same for every row, batch and split, and normalised again.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesmem.data.addressed import AddressBatch, Identities, address_row, unit
from bayesmem.data.checks import check_count, check_counts


@dataclass(frozen=True)
class RandomKeysTask:
    """One distribution of rows; the defaults are the paper's training rows.

    Attributes:
      writes: the numbers n of keys written, of which a row draws one; each at least `queries`.
      queries: Q, different keys that are asked for.
      key_dim: size of a key.
      dims: D, size of an address.
      labels: V, from which the label of each key is drawn, uniformly and independently.
      projection_seed: seed of the projection; tasks that are to be compared share it.

    Raises:
      ValueError: a number does not fit; names it, what was found and what was wanted.
    """

    writes: tuple[int, ...] = (16, 32, 48, 64)
    queries: int = 8
    key_dim: int = 64
    dims: int = 16
    labels: int = 64
    projection_seed: int = 0

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name in ("queries", "key_dim", "dims", "labels"):
            check_count(name, getattr(self, name), minimum=1)
        check_count("projection_seed", self.projection_seed, minimum=0)
        writes = check_counts("writes", self.writes, minimum=1)
        if min(writes) < self.queries:
            raise ValueError(
                f"writes: found {min(writes)}, wanted at least queries = {self.queries} of each"
            )
        object.__setattr__(self, "writes", writes)

    @property
    def features(self) -> int:
        """F, size of a token."""
        return 1 + self.dims + self.labels

    @property
    def length(self) -> int:
        """T, tokens of a row with the most writes."""
        return max(self.writes) + self.queries

    def projection(self) -> Float[Array, "C D"]:
        """Returns the map [key_dim, dims] from keys to addresses before they are normalised."""
        seed = jax.random.key(self.projection_seed)
        return jax.random.normal(seed, (self.key_dim, self.dims), jnp.float32)


def sample_random_keys(task: RandomKeysTask, key: jax.Array, batch_size: int) -> AddressBatch:
    """Draws rows of a task; a pure function of its arguments.

    Args:
      task: the distribution.
      key: a key of `jax.random`.
      batch_size: B, at least 1; static.

    Returns:
      AddressBatch with T = task.length, F = task.features, Q = task.queries; rivals are all -1.

    Raises:
      ValueError: batch_size is no integer >= 1.
    """
    check_count("batch_size", batch_size, minimum=1)
    row = partial(_row, task, task.projection())
    return jax.vmap(row)(jax.random.split(key, batch_size))


def _row(task: RandomKeysTask, projection: Float[Array, "C D"], key: jax.Array) -> AddressBatch:
    keys, most = jax.random.split(key, 4), max(task.writes)
    directions = unit(jax.random.normal(keys[0], (most, task.key_dim), jnp.float32))
    identities = Identities(
        addresses=unit(jnp.matmul(directions, projection, precision="highest")),
        labels=jax.random.randint(keys[1], (most,), 0, task.labels, jnp.int32),
        rivals=jnp.full(most, -1, jnp.int32),
    )
    count = jax.random.choice(keys[2], jnp.array(task.writes, jnp.int32))
    # The smallest of random numbers pick different keys; those not written come last.
    lots = jnp.where(
        jnp.arange(most) < count, jax.random.uniform(keys[3], (most,), jnp.float32), jnp.inf
    )
    asked = jnp.argsort(lots)[: task.queries]
    steps = jnp.arange(task.length)
    order = jnp.select(
        [steps < count, steps < count + task.queries],
        [steps, jnp.take(asked, steps - count, mode="clip")],
        -1,
    )
    return address_row(identities, order, count, task.queries, task.labels)
