"""The covariance chain as a Mosaic GPU kernel: one program a batch row, head and noise group.

The covariance stays in shared memory from the first chunk to the last. Keys are read where the op
has them; decays and Gram matrices are made in registers from a few numbers a token.

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
from kernels_pallas.kalman_chunk.algebra import Factors, transpose
from kernels_pallas.kalman_chunk.chunks import COARSE, ENTRY, FINE, NOISE, TO_END, Vectors, stack
from kernels_pallas.kalman_chunk.config import Config
from kernels_pallas.kalman_chunk.tiles import LAYOUT, LENGTH


def _factor(
    joint: Any, panel: Any, logs: tuple[Any, Any], finished: list[Any], inverse: list[Any],
    aged: list[Any], plain: bool,
) -> None:  # fmt: skip
    """Runs the elimination on [S | I]^T: T^T into `inverse`, panels of 8 columns from the left.

    A panel takes in what all panels before it leave of it by one product, and is then factored in
    registers (`panels`).

    Args:
      joint: [64, 72] float32, S in columns 0..63.
      panel: [128, PITCH] float32, scratch.
      logs: two [L] float32, `Vectors.coarse` and `fine`.
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
        with jax.named_scope("panel products"):
            taken, taken_eye = pl.run_scoped(scope, accumulator, accumulator)
        with jax.named_scope("panel rest"):
            given = tiles.read(joint.at[:, pl.ds(start, width)])
            eye = jnp.where(row == column + start, jnp.float32(1.0), jnp.float32(0.0))
            panel[:half, :width] = given - taken
            panel[half:, :width] = eye - taken_eye
            plgpu.commit_smem()
        done = [part.at[number] for part in finished]
        with jax.named_scope("panel pivots"):
            if plain:
                panels.factor_panel_plainly(panel, start, logs, done, inverse, aged)
            else:
                block = panel.at[pl.ds(start, width)]
                panels.factor_panel(panel, block, logs, done, inverse, aged)
            plgpu.commit_smem()
        return 0

    lax.fori_loop(0, half // width, one, 0)


def _chain_body(
    keys_gm, rows_gm, obs_var_gm, first_gm, inverse_gm, writes_gm, cov_gm,
    early, rows, obs_var, cov, carried, joint, panel, inverse, either, loaded, first_loaded,
    *, heads: int, groups: int, plain: bool,
):  # fmt: skip
    """Runs one program; see `run_chain` for the arrays in global memory (`_gm`).

    In shared memory: in one place keys [L, D], later the transpose of T with its decays; two
    chunks' rows [2, 5, L] and own noise [2, L] float32; parts of the covariance [D, D]; parts of
    Cov(S_j) k_j, later of X's inner factor [L, D]; S [L, 72]; the panel; parts of T^T [L, L]; and
    in one place either the finished panels or parts of the writes and of the gain [L, D].
    """
    (keys,), aged = early
    finished, (writes, gain) = either
    dim, count, chunks = keys.shape[1], len(cov), writes_gm.shape[1]
    program = lax.axis_index("program")
    batch, place = program // (heads * groups), lax.rem(program, heads * groups)
    eps = jnp.float32(algebra.CHAIN_EPS[count])

    def fetch(chunk):
        given, slot = lax.min(chunk, chunks - 1), lax.rem(chunk, 2)
        head = place // groups
        plgpu.copy_gmem_to_smem(keys_gm.at[batch, given, :, head], keys, loaded)
        plgpu.copy_gmem_to_smem(rows_gm.at[batch, given, head], rows.at[slot], loaded)
        plgpu.copy_gmem_to_smem(obs_var_gm.at[batch, given, place], obs_var.at[slot], loaded)

    def by_row(vectors, index, shape):
        return tiles.down(vectors.at[index], shape)

    def diagonal(height):
        shape = (height, LENGTH)
        across = plgpu.broadcasted_iota(jnp.int32, shape, 1, layout=LAYOUT)
        return plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=LAYOUT), across

    def make_gram(vectors):
        """Covariance of the values that noise within the chunk makes: ratio_ij n_j k_i . k_j."""
        square = (LENGTH, LENGTH)
        overlap = tiles.product(square, ([keys], [tiles.transposed(keys)]))
        row, column = diagonal(LENGTH)
        noise = vectors.at[NOISE]
        noise = jnp.where(row >= column, tiles.across(noise, square), tiles.down(noise, square))
        return overlap * noise * jnp.exp2(-jnp.abs(tiles.span(vectors, square)))

    def make_joint(vectors, own):
        """Leaves Cov(S_j) k_j in `carried` and S in `joint`."""
        tall, square = (LENGTH, dim), (LENGTH, LENGTH)
        # K (P + P^T) / 2: rounding makes P unsymmetric, and nothing here would damp that.
        both = [([keys], [part]) for part in cov] + [([keys], [tiles.transposed(p)]) for p in cov]
        with jax.named_scope("kp"):
            key_cov = 0.5 * tiles.product(tall, *both)
        with jax.named_scope("carried"):
            wide = tiles.read(keys).astype(jnp.float32)
            entry = by_row(vectors, ENTRY, tall)
            tiles.store(carried, key_cov * entry * entry + wide * by_row(vectors, NOISE, tall))
        with jax.named_scope("s"):
            s = tiles.register_product(key_cov, count, [keys], True, plain)
        s = s * by_row(vectors, ENTRY, square) * tiles.across(vectors.at[ENTRY], square)
        with jax.named_scope("gram"):
            s = s + make_gram(vectors)
        row, column = diagonal(LENGTH)
        # s lacks the own noise so far: it is added, raised to the floor of what s then is.
        share = jnp.float32(algebra.NOISE_FLOOR * 2.0**-23)
        noise = tiles.down(own, square)
        noise = jnp.maximum(noise, share * (s + noise))
        s = s + jnp.where(row == column, noise, jnp.float32(0.0))
        joint[:, :LENGTH] = s

    def make_gain(chunk, vectors):
        """Leaves K^T = T^T Z in `gain` and S K^T / 2 - B in `carried`; writes go out."""
        shape = (LENGTH, dim)
        with jax.named_scope("u"):
            u = tiles.product(shape, ([tiles.transposed(part) for part in aged], carried))
        with jax.named_scope("u store"):
            tiles.store(writes, u)
            tiles.store(gain, by_row(vectors, TO_END, shape) * u)
            plgpu.commit_smem()
        fetch(chunk + 1)  # where `aged` was
        for i, part in enumerate(writes):
            plgpu.copy_smem_to_gmem(part, writes_gm.at[program, chunk, i])
        with jax.named_scope("g"):
            whole = tiles.product(shape, (inverse, gain))
            plgpu.commit_smem()
        with jax.named_scope("g store"):
            tiles.store(gain, whole)
            plgpu.commit_smem()
            s = tiles.read(joint.at[:, :LENGTH])
        with jax.named_scope("sg"):
            doubled = tiles.register_product(s, count, gain, False, plain)
        with jax.named_scope("sg store"):
            tiles.store(
                carried, 0.5 * doubled - by_row(vectors, TO_END, shape) * tiles.load(carried)
            )

    def update(vectors):
        """P' = P a_L^2 + n_L I + X + X^T, a band of 64 columns after the other."""
        total, noise = vectors[ENTRY, LENGTH - 1], vectors[NOISE, LENGTH - 1]
        for band in range(dim // LENGTH):
            columns = slice(LENGTH * band, LENGTH * (band + 1))
            left = (
                [tiles.transposed(part) for part in gain],
                [tiles.transposed(part) for part in carried],
            )
            right = [part.at[:, columns] for part in carried], [p.at[:, columns] for p in gain]
            with jax.named_scope("x"):
                change = tiles.product((dim, LENGTH), *zip(left, right, strict=True))
            row, column = diagonal(dim)
            here = row == column + LENGTH * band
            band_cov = [part.at[:, columns] for part in cov]
            prior = tiles.load(band_cov) * (total * total) + jnp.where(
                here, noise, jnp.float32(0.0)
            )
            # What rounding may have taken from a diagonal entry is put back on it.
            prior = prior + jnp.where(here, eps * prior, jnp.float32(0.0))
            tiles.store(band_cov, prior + change)

    def step(chunk, _):
        vectors = rows.at[lax.rem(chunk, 2)]
        with jax.named_scope("load"):
            plgpu.barrier_wait(loaded)
        for i, part in enumerate(cov):
            plgpu.copy_smem_to_gmem(part, cov_gm.at[program, chunk, i])
        with jax.named_scope("joint"):
            make_joint(vectors, obs_var.at[lax.rem(chunk, 2)])
            plgpu.commit_smem()
        logs = vectors.at[COARSE], vectors.at[FINE]
        with jax.named_scope("factor"):
            _factor(joint, panel, logs, finished, inverse, aged, plain)
        for i, part in enumerate(inverse):
            plgpu.copy_smem_to_gmem(part, inverse_gm.at[program, chunk, i])
        with jax.named_scope("gain"):
            make_gain(chunk, vectors)
            plgpu.commit_smem()
            plgpu.wait_smem_to_gmem(0)
        with jax.named_scope("update"):
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
    rows: jax.Array,
    obs_var: jax.Array,
    first: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Launches the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16.
      rows: [B, N, H, 5, L] float32, see `chunks.stack`.
      obs_var: [B, N, H G, L] float32, r_i^2.
      first: [B H G, parts, D, D] bfloat16, parts of the first covariance.
      interpret: run without inlined code, for the interpreter.

    Returns:
      Parts, bfloat16, of T^T [B H G, N, parts, L, L], of the writes [B H G, N, parts, L, D], and of
      P at chunk entries and at the end [B H G, N + 1, parts, D, D].
    """
    batch, chunks, _, heads, dim = keys.shape
    programs, parts = first.shape[:2]
    bf16, f32 = jnp.bfloat16, jnp.float32

    def wide(height, width):
        return plgpu.SMEM((height, width), bf16, transforms=panels.WIDE)

    tall, square = [wide(LENGTH, dim)] * parts, [wide(LENGTH, LENGTH)] * parts
    panel = (LENGTH // panels.WIDTH, 128, panels.WIDTH)
    finished = [plgpu.SMEM(panel, f32, transforms=panels.PANEL)] * 2
    scratch = [
        plgpu.RefUnion([wide(LENGTH, dim)], square),
        plgpu.SMEM((2, 5, LENGTH), f32),
        plgpu.SMEM((2, LENGTH), f32),
        [wide(dim, dim)] * parts,
        tall,
        plgpu.SMEM((LENGTH, LENGTH + 8), f32),
        plgpu.SMEM((128, panels.PITCH), f32),
        square,
        plgpu.RefUnion(finished, (tall, tall)),
        plgpu.Barrier(num_arrivals=3),
        plgpu.Barrier(num_arrivals=parts),
    ]
    groups = programs // (batch * heads)
    body = functools.partial(_chain_body, heads=heads, groups=groups, plain=interpret)
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
    )(keys, rows, obs_var, first)


class Parts(NamedTuple):
    """What the kernel leaves for the reads, as it stores it: parts, bfloat16."""

    inverse: jax.Array  # [B H G, N, parts, L, L] of T^T
    writes: jax.Array  # [B H G, N, parts, L, D]


def covariance_chain(
    keys: jax.Array, vectors: Vectors, cov: jax.Array, config: Config
) -> tuple[Parts, jax.Array]:
    """`algebra.covariance_chain` by the kernel.

    Args:
      keys: [B, N, L, H, D] bfloat16, L = 64.
      vectors: the numbers of each token.
      cov: [B, H, G, D, D], before the first chunk.
      config: tuning values.

    Returns:
      Parts of the inverse and of the writes, and of P at chunk entries and at the end
      [B H G, N + 1, parts, D, D], as the kernel stores them.
    """
    first = jnp.stack(tiles.split_in_xla(cov.reshape(-1, *cov.shape[-2:]), config.parts), axis=1)
    inverse, writes, covs = run_chain(
        keys, stack(vectors), vectors.obs_var, first, interpret=config.interpret
    )
    return Parts(inverse, writes), covs


def factors(parts: Parts, covs: jax.Array, lead: tuple[int, int, int]) -> tuple[Factors, jax.Array]:
    """Joins what `covariance_chain` returns: the factors of `algebra`, and P at the end.

    Args:
      parts: of the inverse and of the writes.
      covs: parts of P.
      lead: B, H, G.
    """

    def joined(parts: jax.Array) -> jax.Array:
        """Parts [B H G, N, parts, ...] -> [N, B, H, G, ...]."""
        return tiles.by_chunk(tiles.join_in_xla(parts, axis=2), lead)

    cov = joined(covs)
    cov = 0.5 * (cov + transpose(cov))
    inverse = jnp.tril(transpose(joined(parts.inverse)))
    return Factors(inverse, joined(parts.writes), cov[:-1]), cov[-1]
