"""What a warpgroup of the covariance chain makes of one chunk, and what its program holds.

`chain` calls these in their order. Half of the key channels are a warpgroup's own.

Arithmetic: products are bfloat16 tensor-core products of parts. A float32 number is a sum of
`parts` bfloat16, and of the products of parts those that count are taken: with 2 parts 16 bits
survive, with 3 all. The factorization itself runs on tf32 parts, which is float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import algebra, panels, slabs, tiles, warpgroups
from kernels_pallas.kalman_chunk.chunks import COARSE, ENTRY, FINE, NOISE, TO_END
from kernels_pallas.kalman_chunk.tiles import LAYOUT, LENGTH

SQUARE = (LENGTH, LENGTH)

EPS = {2: 2.0**-17, 3: 2.0**-23}
"""Rounding of the products, by the number of bfloat16 parts of a number."""


class Arrays(NamedTuple):
    """In global memory; see `fwd.run_chain`."""

    keys: Any
    rows: Any
    obs_var: Any
    first: Any
    inverse: Any
    writes: Any
    cov: Any


class Held(NamedTuple):
    """In shared memory. Lists are parts, bfloat16; w is D, or the columns of a slab.

    Some take each other's place: `finished` and `aged`, `share`, `writes` and `gain`; with slabs
    those that `fwd.scratch_of` says.
    """

    keys: Any  # [L, D] bfloat16
    rows: Any  # [2, 5, L] float32, of two chunks
    obs_var: Any  # [2, L] float32
    cov: list[Any]  # [D, w]
    carried: list[Any]  # [L, w] Cov(S_j) k_j, later X's inner factor
    joint: Any  # [L, 72] float32, S
    panel: Any  # [L, PITCH] float32
    inverse: list[Any]  # [L, L] T^T
    finished: list[Any]  # two [8, L, 8] float32, panels
    aged: list[Any]  # [L, L] T^T times decays
    share: Any  # [L, L] float32, what warpgroup 1 adds to S
    writes: list[Any]  # [L, w/2], of one half, then of the other
    gain: list[Any]  # [L, w]
    loaded: Any  # barriers: of a chunk's copies,
    first_loaded: Any  # of the first covariance,
    shared: Any  # of `share`,
    factored: Any  # of the factorization,
    met: Any  # and of both warpgroups
    exchange: slabs.Exchange | None  # with the other slabs


class Program(NamedTuple):
    """Where a program is, and the half that a warpgroup has."""

    program: Any
    batch: Any
    place: Any  # head and noise group
    head: Any
    slab: Any  # None where there is only one
    half: int
    plain: bool


def where(i: int, dim: int) -> slice:
    """Half `i` of an axis."""
    return slice(i * dim // 2, (i + 1) * dim // 2)


def slab_of(at: Program, width: int) -> Any:
    """Which of all D columns a slab of `width` has."""
    return slice(0, width) if at.slab is None else pl.ds(at.slab * width, width)


def mine_of(at: Program, width: int) -> Any:
    """Which of all D columns a warpgroup has, of its slab's `width`."""
    mine = where(at.half, width)
    return mine if at.slab is None else pl.ds(at.slab * width + mine.start, width // 2)


def gram(held: Held, at: Program, vectors: Any) -> jax.Array:
    """Covariance of the values that noise within the chunk makes, ratio_ij n_j k_i . k_j.

    Of a slab, what its columns add to it.
    """
    width = held.cov[0].shape[1]
    keys = held.keys.at[:, slab_of(at, width)]
    overlap = tiles.product(SQUARE, ([keys], [tiles.transposed(keys)]))
    row, column = tiles.places()
    noise = vectors.at[NOISE]
    noise = jnp.where(row >= column, tiles.across(noise, SQUARE), tiles.down(noise, SQUARE))
    return overlap * noise * tiles.decays(vectors)


def half_of_joint(held: Held, at: Program, vectors: Any) -> jax.Array:
    """Leaves half of Cov(S_j) k_j in `carried`; returns what that half adds to S."""
    width, count = held.cov[0].shape[1], len(held.cov)
    mine, tall = where(at.half, width), (LENGTH, width // 2)
    own_keys = held.keys.at[:, mine_of(at, width)]
    with jax.named_scope("kp"):
        key_cov = tiles.product(tall, ([held.keys], [part.at[:, mine] for part in held.cov]))
    with jax.named_scope("carried"):
        keys = tiles.read(own_keys).astype(jnp.float32)
        entry = tiles.down(vectors.at[ENTRY], tall)
        carried = key_cov * entry * entry + keys * tiles.down(vectors.at[NOISE], tall)
        tiles.store([part.at[:, mine] for part in held.carried], carried, at.plain)
    with jax.named_scope("s"):
        s = tiles.register_product(key_cov, count, [own_keys], True, at.plain)
        return s * tiles.down(vectors.at[ENTRY], SQUARE) * tiles.across(vectors.at[ENTRY], SQUARE)


def finish_joint(held: Held, at: Program, s: jax.Array, own: Any) -> None:
    """Leaves S in `joint`: with what the other warpgroup adds, and the readings' own noise."""
    s = s + tiles.read(held.share)
    if held.exchange is not None:
        s = slabs.total(held.exchange, held.share, s, at)
    row, column = tiles.places()
    # Its own noise is raised to the floor of what a reading's variance then is.
    noise = tiles.down(own, SQUARE)
    noise = jnp.maximum(noise, jnp.float32(algebra.NOISE_FLOOR * 2.0**-23) * (s + noise))
    held.joint[:, :LENGTH] = s + jnp.where(row == column, noise, jnp.float32(0.0))
    plgpu.commit_smem()


def factor(held: Held, plain: bool) -> None:
    """Inverts a Cholesky factor in place: T^T into `finished`, panels of 8 columns from the left.

    It is elimination on [S | I]^T, of which only 64 of the 128 rows are at work at any time: a row
    of S until its own block is reached, and the same row of I from there on. A panel takes in what
    all panels before it leave of it by one product, and is then factored in registers (`panels`).
    """
    width, finished = panels.WIDTH, held.finished
    row = plgpu.broadcasted_iota(jnp.int32, (LENGTH, width), 0, layout=LAYOUT)

    def one(number, _):
        start = number * width

        def scope(acc):
            def earlier(q, _):
                high, low = (part.at[q] for part in finished)
                own = [tiles.transposed(part.at[q, pl.ds(start, width)]) for part in finished]
                plgpu.wgmma(acc, high, own[0])
                plgpu.wgmma(acc, high, own[1])
                plgpu.wgmma(acc, low, own[0])
                return 0

            lax.fori_loop(0, number, earlier, 0)
            return acc[...]

        with jax.named_scope("panel products"):
            taken = pl.run_scoped(scope, plgpu.ACC((LENGTH, width), jnp.float32))
        with jax.named_scope("panel rest"):
            given = tiles.read(held.joint.at[:, pl.ds(start, width)])
            held.panel[:, :width] = jnp.where(row >= start, given, jnp.float32(0.0)) - taken
        with jax.named_scope("panel pivots"):
            if plain:
                panels.factor_panel_plainly(held.panel, start, finished)
            else:
                panels.factor_panel(held.panel, held.panel.at[pl.ds(start, width)], finished)
            plgpu.commit_smem()
        return 0

    lax.fori_loop(0, LENGTH // width, one, 0)


def half_of_inverse(held: Held, at: Program, vectors: Any) -> None:
    """Leaves half of T^T in `inverse` and, times decays, in `aged`."""
    given = held.finished, (vectors.at[COARSE], vectors.at[FINE]), held.inverse, held.aged
    with jax.named_scope("inverse"):
        if at.plain:
            panels.take_inverse_plainly(*given, at.half)
        else:
            panels.take_inverse(*given, held.cov[0].shape[1] // 2, at.half)
        warpgroups.meet([held.met])


def half_of_gain(gm: Arrays, held: Held, at: Program, vectors: Any, chunk: Any) -> None:
    """Leaves half of K^T = T^T Z in `gain` and of S K^T / 2 - B in `carried`; U goes out."""
    width, count = held.cov[0].shape[1], len(held.cov)
    mine, shape = where(at.half, width), (LENGTH, width // 2)
    carried, gain = ([part.at[:, mine] for part in parts] for parts in (held.carried, held.gain))
    writes = held.writes[at.half * count : (at.half + 1) * count]
    with jax.named_scope("u"):
        u = tiles.product(shape, ([tiles.transposed(part) for part in held.aged], carried))
        warpgroups.meet([held.met])  # `writes` and `gain` take the place of `aged`
    with jax.named_scope("u store"):
        to_end = tiles.down(vectors.at[TO_END], shape)
        tiles.store(writes, u, at.plain)
        tiles.store(gain, to_end * u, at.plain)
        plgpu.commit_smem()
        for i, part in enumerate(writes):
            plgpu.copy_smem_to_gmem(part, gm.writes.at[at.program, chunk, i, :, mine_of(at, width)])
    with jax.named_scope("g"):
        whole = tiles.product(shape, (held.inverse, gain))
        plgpu.commit_smem()
        tiles.store(gain, whole, at.plain)
        plgpu.commit_smem()
    with jax.named_scope("sg"):
        s = tiles.read(held.joint.at[:, :LENGTH])
        doubled = tiles.register_product(s, count, gain, False, at.plain)
        rows = to_end * tiles.load(carried, at.plain)
        tiles.store(carried, 0.5 * doubled - rows, at.plain)


def half_of_update(held: Held, at: Program, vectors: Any) -> None:
    """P' = P a_L^2 + n_L I + X + X^T, half of its columns, 64 rows after the other.

    X and X^T are summed in the same order, so that P' is symmetric to the last bit.
    """
    width = held.cov[0].shape[1]
    mine, shape = where(at.half, width), (LENGTH, width // 2)
    total, noise = vectors[ENTRY, LENGTH - 1], vectors[NOISE, LENGTH - 1]
    eps = jnp.float32(EPS[len(held.cov)])
    right = [tiles.columns(parts, mine) for parts in (held.carried, held.gain)]

    def rows_of(block, gain, inner):
        """64 rows, given gain and X's inner factor of the columns that they are."""
        start = block * LENGTH
        change = tiles.product(shape, (tiles.flipped(gain), right[0]))
        change = change + tiles.mirrored_product(shape, tiles.flipped(inner), right[1])
        row, column = tiles.places(shape)
        here = row + start == column + mine_of(at, width).start
        cov = [part.at[pl.ds(start, LENGTH), mine] for part in held.cov]
        prior = tiles.load(cov, at.plain) * (total * total) + jnp.where(
            here, noise, jnp.float32(0.0)
        )
        # What rounding may have taken from a diagonal entry is put back on it.
        prior = prior + jnp.where(here, eps * prior, jnp.float32(0.0))
        tiles.store(cov, prior + change, at.plain)

    def one(block, _):
        columns = pl.ds(block * LENGTH, LENGTH)
        rows_of(block, *[tiles.columns(parts, columns) for parts in (held.gain, held.carried)])
        return 0

    if held.exchange is None:
        # Rolled: the instructions of a chunk have to stay near.
        lax.fori_loop(0, width // LENGTH, one, 0)
    else:
        slabs.each_block(held.exchange, (held.gain, held.carried), rows_of, held.met, at)
