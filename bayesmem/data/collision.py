"""The learned collision: are many writes of A to wear away what was learned about B?

"Memory by Design" (arXiv 2605.31163), section 4.1, Figure 3 c, d. A row has K pairs (A_i, B_i) of
addresses that overlap, k_B = rho k_A + sqrt(1 - rho^2) k_perp, on 2K orthonormal directions, and
four phases:

    seed    every one of the 2K identities is written once, in random order
    boost   every B_i is written `boost` times, pair by pair
    flood   every A_i is written n_f times, pair by pair
    query   every B_i is queried once, in random order

Pairs take their turns in boost and flood in the order of their numbers, which say nothing: labels
are assigned anew in every row, distinct within it, and the directions are a random rotation of
every row. A rotation (uniform over the orthogonal group) rather than a signed permutation, because
no coordinate is then special: a gate for each coordinate of the key, or a diagonal covariance,
cannot tell the pairs apart by looking at axes.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayesmem.data.addressed import AddressBatch, Identities, address_row, unit
from bayesmem.data.checks import check_count, check_counts, check_range


@dataclass(frozen=True)
class CollisionTask:
    """One distribution of rows; the defaults are the paper's training rows.

    Attributes:
      pairs: K, pairs of addresses that overlap.
      dims: D, size of an address, at least 2K.
      labels: V, at least 2K.
      boost: writes of every B_i after the seed.
      floods: the numbers n_f of writes of every A_i, of which a row draws one.
      overlap: (low, high) of rho, in [0, 1): uniform, one draw a row.

    Raises:
      ValueError: a number does not fit; names it, what was found and what was wanted.
    """

    pairs: int = 8
    dims: int = 16
    labels: int = 16
    boost: int = 4
    floods: tuple[int, ...] = (1, 2, 4, 8)
    overlap: tuple[float, float] = (0.6, 0.8)

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_count("pairs", self.pairs, minimum=1)
        check_count("boost", self.boost, minimum=1)
        for name in ("dims", "labels"):
            found = getattr(self, name)
            check_count(name, found, minimum=1)
            if found < 2 * self.pairs:
                raise ValueError(
                    f"{name}: found {found}, wanted at least 2 * pairs = {2 * self.pairs}"
                )
        object.__setattr__(self, "floods", check_counts("floods", self.floods, minimum=1))
        object.__setattr__(self, "overlap", check_range("overlap", self.overlap, 0.0, 1.0))

    @property
    def features(self) -> int:
        """F, size of a token."""
        return 1 + self.dims + self.labels

    @property
    def length(self) -> int:
        """T, tokens of a row with the longest flood."""
        return self.pairs * (2 + self.boost + max(self.floods) + 1)


def sample_collision(task: CollisionTask, key: jax.Array, batch_size: int) -> AddressBatch:
    """Draws rows of a task; a pure function of its arguments.

    Args:
      task: the distribution.
      key: a key of `jax.random`.
      batch_size: B, at least 1; static.

    Returns:
      AddressBatch with T = task.length, F = task.features, Q = K; targets are the labels of the
      B_i, rivals those of their A_i.

    Raises:
      ValueError: batch_size is no integer >= 1.
    """
    check_count("batch_size", batch_size, minimum=1)
    return jax.vmap(partial(_row, task))(jax.random.split(key, batch_size))


def random_rotation(key: jax.Array, dims: int) -> Float[Array, "D D"]:
    """Returns a matrix drawn uniformly from the orthogonal matrices, float32; rows are directions.

    Gram-Schmidt on normal vectors, each projected twice: after that rows are orthogonal to
    rounding. A GPU takes the QR factors of a batch of small matrices one after the other.
    """

    def orthonormal(i, rows):
        earlier = jnp.where(jnp.arange(dims)[:, None] < i, rows, 0.0)
        row = rows[i]
        for _ in range(2):
            # Sums and not matrix products, which a GPU would round to tf32.
            shares = jnp.sum(earlier * row, axis=1, keepdims=True)
            row = row - jnp.sum(shares * earlier, axis=0)
        return rows.at[i].set(unit(row))

    rows = jax.random.normal(key, (dims, dims), jnp.float32)
    return jax.lax.fori_loop(0, dims, orthonormal, rows)


def _row(task: CollisionTask, key: jax.Array) -> AddressBatch:
    """Returns one row; identities 0 to K - 1 are the A_i, K to 2K - 1 the B_i."""
    keys, pairs = jax.random.split(key, 6), task.pairs
    low, high = task.overlap
    overlap = jax.random.uniform(keys[0], (), jnp.float32, low, high)
    first, other = random_rotation(keys[1], task.dims)[: 2 * pairs].reshape(2, pairs, task.dims)
    second = unit(overlap * first + jnp.sqrt(1 - overlap**2) * other)
    labels = jax.random.permutation(keys[2], task.labels)[: 2 * pairs].astype(jnp.int32)
    identities = Identities(
        addresses=jnp.concatenate([first, second]),
        labels=labels,
        rivals=jnp.concatenate([jnp.full(pairs, -1, jnp.int32), labels[:pairs]]),
    )
    flood = jax.random.choice(keys[3], jnp.array(task.floods, jnp.int32))
    seeds = jax.random.permutation(keys[4], 2 * pairs)
    queries = pairs + jax.random.permutation(keys[5], pairs)
    # Each count starts at 0 with its phase; before and after it, what it picks is not chosen.
    steps = jnp.arange(task.length)
    boosted = steps - 2 * pairs
    flooded = boosted - task.boost * pairs
    asked = flooded - flood * pairs
    order = jnp.select(
        [boosted < 0, flooded < 0, asked < 0, asked < pairs],
        [
            jnp.take(seeds, steps, mode="clip"),
            pairs + boosted // task.boost,
            flooded // flood,
            jnp.take(queries, asked, mode="clip"),
        ],
        -1,
    )
    first_query = (2 + task.boost + flood) * pairs
    return address_row(identities, order, first_query, pairs, task.labels)
