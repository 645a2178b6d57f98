"""The covariance chain as a Mosaic GPU kernel: one program a batch row, head and noise group.

The covariance stays in shared memory from the first chunk to the last. What needs no belief (Gram
matrices, decays) is prepared for all chunks at once beforehand, and what needs no earlier chunk
(writes, gains, means, reads) is left to products over all chunks afterwards.

Arithmetic: products of the chain are bfloat16 tensor-core products of parts. A float32 number is a
sum of `parts` bfloat16, and of the products of parts those that count are taken: with 2 parts 16
bits survive, with 3 all. The factorization itself runs on tf32 parts, which is float32.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import algebra, panels, tiles
from kernels_pallas.kalman_chunk.algebra import Factors, Terms, grouped, transpose
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.tiles import LAYOUT, LENGTH

ENTRY, TO_END, NOISE, OBS_VAR, LOGS, LAST = range(6)
"""Rows of the vectors of a chunk: a_i, e_i, n_i, r_i^2, c_i / log 2, and (a_L^2, n_L, 0, ...)."""


def _factor(
    joint: Any, panel: Any, logs: Any, finished: list[Any], inverse: list[Any], aged: list[Any],
    plain: bool,
) -> None:  # fmt: skip
    """Runs the elimination on [S | I]^T: T^T into `inverse`, panels of 8 columns from the left.

    A panel takes in what all panels before it leave of it by one product, and is then factored in
    registers (`panels`).

    Args:
      joint: [64, 72] float32, S in columns 0..63.
      panel: [128, PITCH] float32, scratch.
      logs: [L] float32, cumulative log decays in units of log 2.
      finished: two [8, 128, 8] float32 as `panels.PANEL`, scratch.
      inverse: parts [64, 64] bfloat16 as `panels.WIDE`, of T^T.
      aged: the same, of T^T with each entry times its decay.
      plain: without inlined code, for the interpreter.
    """
    width, half = panels.WIDTH, LENGTH
    row = plgpu.broadcasted_iota(jnp.int32, (half, width), 0, layout=LAYOUT)
    column = plgpu.broadcasted_iota(jnp.int32, (half, width), 1, layout=LAYOUT)

    def one(number, _):
        start = number * width

        def scope(upper, lower):
            def earlier(q, _):
                high, low = (part.at[q] for part in finished)
                own = [tiles.transposed(part.at[q, pl.ds(start, width)]) for part in finished]
                for acc, rows in ((upper, slice(0, half)), (lower, slice(half, 2 * half))):
                    plgpu.wgmma(acc, high.at[rows], own[0])
                    plgpu.wgmma(acc, high.at[rows], own[1])
                    plgpu.wgmma(acc, low.at[rows], own[0])
                return 0

            lax.fori_loop(0, number, earlier, 0)
            return upper[...], lower[...]

        accumulator = plgpu.ACC((half, width), jnp.float32)
        taken, taken_eye = pl.run_scoped(scope, accumulator, accumulator)
        given = tiles.read(joint.at[:, pl.ds(start, width)])
        eye = jnp.where(row == column + start, jnp.float32(1.0), jnp.float32(0.0))
        panel[:half, :width] = given - taken
        panel[half:, :width] = eye - taken_eye
        plgpu.commit_smem()
        done = [part.at[number] for part in finished]
        if plain:
            panels.factor_panel_plainly(panel, start, logs, done, inverse, aged)
        else:
            block = panel.at[pl.ds(start, width)]
            panels.factor_panel(panel, block, logs, done, inverse, aged)
        plgpu.commit_smem()
        return 0

    lax.fori_loop(0, half // width, one, 0)


def _chain_body(
    keys_gm, gram_gm, rows_gm, first_gm, inverse_gm, writes_gm, cov_gm,
    early, rows, cov, carried, joint, panel, inverse, either, loaded, first_loaded,
    *, groups: int, chunks: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_chain` for the arrays in global memory (`_gm`).

    In shared memory: in one place keys [L, D], later the transpose of T with its decays; two
    chunks' rows [2, 6, L] float32; parts of the covariance [D, D]; parts of Cov(S_j) k_j, later of
    X's inner factor [L, D]; S [L, 72]; the panel; parts of T^T [L, L]; and in one place either the
    finished panels or parts of the writes and of the gain [L, D].
    """
    (keys,), aged = early
    finished, (writes, gain) = either
    dim, count = keys.shape[1], len(cov)
    program = lax.axis_index("program")
    eps = jnp.float32(algebra.CHAIN_EPS[count])

    def fetch(chunk):
        given = lax.min(chunk, chunks - 1)
        plgpu.copy_gmem_to_smem(keys_gm.at[program // groups, given], keys, loaded)
        plgpu.copy_gmem_to_smem(rows_gm.at[program, given], rows.at[lax.rem(chunk, 2)], loaded)

    def by_row(vectors, index, shape):
        values = tiles.read(vectors.at[index], LAYOUT.reduce(1))
        return lax.broadcast_in_dim(values, shape, (0,))

    def diagonal(height):
        shape = (height, LENGTH)
        across = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=LAYOUT)
        return plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=LAYOUT), across

    def make_joint(gram, vectors):
        """Leaves Cov(S_j) k_j in `carried` and S in `joint`."""
        tall, square = (LENGTH, dim), (LENGTH, LENGTH)
        # K (P + P^T) / 2: rounding makes P unsymmetric, and nothing here would damp that.
        both = [([keys], [part]) for part in cov] + [([keys], [tiles.transposed(p)]) for p in cov]
        key_cov = 0.5 * tiles.product(tall, *both)
        wide = tiles.read(keys).astype(jnp.float32)
        entry = by_row(vectors, ENTRY, tall)
        tiles.store(carried, key_cov * entry * entry + wide * by_row(vectors, NOISE, tall))
        s = tiles.register_product(key_cov, count, [keys], True, plain)
        across = tiles.read(vectors.at[ENTRY], LAYOUT.reduce(0))
        s = s * by_row(vectors, ENTRY, square) * lax.broadcast_in_dim(across, square, (1,)) + gram
        row, column = diagonal(LENGTH)
        short = jnp.float32(algebra.NOISE_FLOOR * 2.0**-23) * s - by_row(vectors, OBS_VAR, square)
        s = s + jnp.where(row == column, jnp.maximum(short, jnp.float32(0.0)), jnp.float32(0.0))
        joint[:, :LENGTH] = s

    def make_gain(chunk, vectors):
        """Leaves K^T = T^T Z in `gain` and S K^T / 2 - B in `carried`; writes go out."""
        shape = (LENGTH, dim)
        u = tiles.product(shape, ([tiles.transposed(part) for part in aged], carried))
        tiles.store(writes, u)
        tiles.store(gain, by_row(vectors, TO_END, shape) * u)
        plgpu.commit_smem()
        fetch(chunk + 1)  # where `aged` was
        for i, part in enumerate(writes):
            plgpu.copy_smem_to_gmem(part, writes_gm.at[program, chunk, i])
        whole = tiles.product(shape, (inverse, gain))
        plgpu.commit_smem()
        tiles.store(gain, whole)
        plgpu.commit_smem()
        s = tiles.read(joint.at[:, :LENGTH])
        doubled = tiles.register_product(s, count, gain, False, plain)
        tiles.store(carried, 0.5 * doubled - by_row(vectors, TO_END, shape) * tiles.load(carried))

    def update(vectors):
        """P' = P a_L^2 + n_L I + X + X^T, a band of 64 columns after the other."""
        squared, noise = vectors[LAST, 0], vectors[LAST, 1]
        for band in range(dim // LENGTH):
            columns = slice(LENGTH * band, LENGTH * (band + 1))
            left = (
                [tiles.transposed(part) for part in gain],
                [tiles.transposed(part) for part in carried],
            )
            right = [part.at[:, columns] for part in carried], [p.at[:, columns] for p in gain]
            change = tiles.product((dim, LENGTH), *zip(left, right, strict=True))
            row, column = diagonal(dim)
            here = row == column + LENGTH * band
            band_cov = [part.at[:, columns] for part in cov]
            prior = tiles.load(band_cov) * squared + jnp.where(here, noise, jnp.float32(0.0))
            # What rounding may have taken from a diagonal entry is put back on it.
            prior = prior + jnp.where(here, eps * prior, jnp.float32(0.0))
            tiles.store(band_cov, prior + change)

    def step(chunk, _):
        vectors = rows.at[lax.rem(chunk, 2)]
        # Early, and straight to registers: it is on its way during the first products.
        gram = tiles.read(gram_gm.at[program, chunk], optimized=False)
        plgpu.barrier_wait(loaded)
        for i, part in enumerate(cov):
            plgpu.copy_smem_to_gmem(part, cov_gm.at[program, chunk, i])
        make_joint(gram, vectors)
        plgpu.commit_smem()
        _factor(joint, panel, vectors.at[LOGS], finished, inverse, aged, plain)
        for i, part in enumerate(inverse):
            plgpu.copy_smem_to_gmem(part, inverse_gm.at[program, chunk, i])
        make_gain(chunk, vectors)
        plgpu.commit_smem()
        plgpu.wait_smem_to_gmem(0)
        update(vectors)
        plgpu.commit_smem()
        return 0

    fetch(jnp.int32(0))
    for i, part in enumerate(cov):
        plgpu.copy_gmem_to_smem(first_gm.at[program, i], part, first_loaded)
    plgpu.barrier_wait(first_loaded)
    lax.fori_loop(0, chunks, step, 0)
    plgpu.barrier_wait(loaded)  # of the last fetch, which nobody reads
    for i, part in enumerate(cov):
        plgpu.copy_smem_to_gmem(part, cov_gm.at[program, chunks, i])
    plgpu.wait_smem_to_gmem(0)


def run_chain(
    keys: jax.Array,
    gram: jax.Array,
    rows: jax.Array,
    first: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Launches the kernel.

    Args:
      keys: [B H, N, L, D] bfloat16.
      gram: [B H G, N, L, L] float32.
      rows: [B H G, N, 6, L] float32, see `ENTRY`.
      first: [B H G, parts, D, D] bfloat16, parts of the first covariance.
      interpret: run without inlined code, for the interpreter.

    Returns:
      Parts, bfloat16, of T^T [B H G, N, parts, L, L], of the writes [B H G, N, parts, L, D], and of
      P at chunk entries and at the end [B H G, N + 1, parts, D, D].
    """
    programs, chunks = gram.shape[:2]
    parts, dim = first.shape[1:3]
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(height, width):
        return plgpu.SMEM((height, width), bf16, transforms=panels.WIDE)

    tall, square = [wide(LENGTH, dim)] * parts, [wide(LENGTH, LENGTH)] * parts
    panel = (LENGTH // panels.WIDTH, 128, panels.WIDTH)
    finished = [plgpu.SMEM(panel, f32, transforms=panels.PANEL)] * 2
    scratch = [
        plgpu.RefUnion([wide(LENGTH, dim)], square),
        plgpu.SMEM((2, 6, LENGTH), f32),
        [wide(dim, dim)] * parts,
        tall,
        plgpu.SMEM((LENGTH, LENGTH + 8), f32),
        plgpu.SMEM((128, panels.PITCH), f32),
        square,
        plgpu.RefUnion(finished, (tall, tall)),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(num_arrivals=parts),
    ]
    body = functools.partial(
        _chain_body, groups=programs // keys.shape[0], chunks=chunks, plain=interpret
    )
    out = [
        jax.ShapeDtypeStruct((programs, chunks, parts, LENGTH, LENGTH), bf16),
        jax.ShapeDtypeStruct((programs, chunks, parts, LENGTH, dim), bf16),
        jax.ShapeDtypeStruct((programs, chunks + 1, parts, dim, dim), bf16),
    ]
    return tiles.mosaic_kernel(
        body,
        out,
        scratch,
        grid=(programs,),
        grid_names=("program",),
    )(keys, gram, rows, first)


class Parts(NamedTuple):
    """What the kernel leaves for the reads, as it stores it: parts, bfloat16."""

    inverse: jax.Array  # [B H G, N, parts, L, L] of T^T
    writes: jax.Array  # [B H G, N, parts, L, D]


def _rows(terms: Terms, logs: jax.Array) -> jax.Array:
    """Returns the vectors of each chunk, [N, B, H, G, 6, L]; `logs` is [N, B, H, L]."""
    total, noise = terms.total[..., None], terms.noise[..., -1:]
    last = jnp.concatenate([total * total, noise], axis=-1)
    last = jnp.pad(last, [(0, 0)] * 3 + [(0, LENGTH - 2)])
    zero = jnp.zeros_like(logs)
    shared = jnp.stack([terms.entry, terms.to_end, terms.noise, zero, logs, last], axis=-2)
    rows = jnp.broadcast_to(grouped(shared, 2), (*terms.obs_var.shape[:4], 6, LENGTH))
    return rows.at[..., OBS_VAR, :].set(terms.obs_var)


def covariance_chain(
    terms: Terms, cov: jax.Array, config: Config
) -> tuple[jax.Array, Factors, Parts]:
    """`algebra.covariance_chain` by the kernel, and the factors as the kernel stores them.

    Args:
      terms: of all chunks, L = 64; keys that bfloat16 holds.
      cov: [B, H, G, D, D], before the first chunk.
      config: tuning values.
    """
    chunks, batch, heads, groups = terms.gram.shape[:4]
    dim = cov.shape[-1]

    def programs(x: jax.Array) -> jax.Array:
        """[N, B, H, G, ...] -> [B H G, N, ...]."""
        x = jnp.moveaxis(x, 0, 3)
        return x.reshape(batch * heads * groups, chunks, *x.shape[4:])

    def joined(parts: jax.Array) -> jax.Array:
        """Parts [B H G, N, parts, ...] -> [N, B, H, G, ...]."""
        x = jnp.sum(parts.astype(jnp.float32), axis=2)
        return jnp.moveaxis(x.reshape(batch, heads, groups, *x.shape[1:]), 3, 0)

    keys = jnp.moveaxis(terms.keys, 0, 2).reshape(batch * heads, chunks, LENGTH, dim)
    inverse, writes, covs = run_chain(
        keys.astype(jnp.bfloat16),
        programs(terms.gram),
        programs(_rows(terms, tiles.log_sums(terms.ratio))),
        jnp.stack(tiles.split_in_xla(cov.reshape(-1, dim, dim), config.parts), axis=1),
        interpret=config.interpret,
    )
    cov_all = joined(covs)
    cov_all = 0.5 * (cov_all + transpose(cov_all))
    factors = Factors(jnp.tril(transpose(joined(inverse))), joined(writes), cov_all[:-1])
    return cov_all[-1], factors, Parts(inverse, writes)
