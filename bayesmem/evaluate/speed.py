"""Time, memory and error of every form of every op, on the shapes of `kernels_pallas.shapes`."""

import functools
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bayesmem
from bayesmem import ops
from kernels_pallas.shapes import CHUNK_SIZES, SLOT_SUITES, SUITES, Shape, SlotShape

MODES = ("fwd", "fwd+bwd")
OPS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "kalman_memory": (ops.kalman_memory, ("recurrent", "chunked", "associative")),
    "delta_rule": (ops.delta_rule, ("recurrent", "chunked")),
    "linear_attention": (ops.linear_attention, ("recurrent", "chunked")),
    "slot_memory": (ops.slot_memory, ("recurrent", "touched", "segmented")),
}


class _Race(NamedTuple):
    """One compiled form, and its times in milliseconds."""

    row: dict[str, Any]
    program: Any
    inputs: dict[str, jax.Array]
    times: list[float]


def bench_ops(
    suite: str, repeats: int = 20, chunk_size: int | None = None
) -> Iterator[dict[str, Any]]:
    """Times all forms of all ops; forms of one op, shape and mode take turns.

    Args:
      suite: a key of `kernels_pallas.shapes.SUITES`.
      repeats: timed calls of each; the median and the spread are reported. Before each, one call is
        not timed, so that no form pays for what the one before it left in memory.
      chunk_size: tokens in a chunk of the chunk forms, or None for those of `CHUNK_SIZES`.

    Yields:
      One row a form and mode: op, implementation, mode, B, T, H, D, M (of the slot memory B, T, H,
      S, K, M), chunk_size (None for forms without), dtype, wall_ms (median, host included),
      wall_ms_low, wall_ms_high (quartiles), relative_error (of the output, forward only,
      against the token recurrence in float64), peak_bytes (temporaries of the compiled program),
      device, versions.

    Raises:
      ValueError: unknown suite, no repeats, or a chunk size below 1.
    """
    if suite not in SUITES:
        raise ValueError(f"suite: found {suite!r}, wanted one of {', '.join(map(repr, SUITES))}")
    if repeats < 1:
        raise ValueError(f"repeats: found {repeats}, wanted at least 1")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size: found {chunk_size}, wanted at least 1")
    slots = [("slot_memory", shape) for shape in SLOT_SUITES[suite]]
    memories = [name for name in OPS if name != "slot_memory"]
    for name, shape in [(name, shape) for shape in SUITES[suite] for name in memories] + slots:
        inputs = _inputs(name, shape)
        exact = _exact(name, shape, inputs)
        for mode in MODES:
            races = []
            for form in OPS[name][1]:
                length = chunk_size or CHUNK_SIZES.get((suite, name, form), 64)
                chunked = form != "recurrent" and name != "slot_memory"
                call = _call(name, shape, form, length if chunked else None)
                row = {"op": name, "implementation": form, "mode": mode, **shape._asdict()}
                row["chunk_size"] = length if chunked else None
                races.append(_compile(row, call, inputs, exact))
            for _ in range(repeats):
                for race in races:
                    race.times.append(_milliseconds(race.program, race.inputs))
            for race in races:
                low, middle, high = np.percentile(race.times, (25, 50, 75))
                times = {"wall_ms": middle, "wall_ms_low": low, "wall_ms_high": high}
                yield race.row | {key: round(float(x), 4) for key, x in times.items()}


def _call(
    name: str, shape: Shape | SlotShape, form: str, chunk_size: int | None
) -> Callable[[dict[str, jax.Array]], jax.Array]:
    """Returns a function from the drawn inputs to the output of one form."""
    op = OPS[name][0]
    if not isinstance(shape, SlotShape):
        sized = {} if chunk_size is None else {"chunk_size": chunk_size}
        return lambda inputs: op(**inputs, **sized, implementation=form)[0]

    def call(inputs):
        write = ops.SlotAddress(inputs["write_ids"], inputs["write_weights"])
        read = ops.SlotAddress(inputs["read_ids"], inputs["read_weights"])
        given = {"num_slots": shape.S, "implementation": form}
        return op(write, read, inputs["v"], inputs["forget"], **given)[0]

    return call


def _inputs(name: str, shape: Shape | SlotShape) -> dict[str, jax.Array]:
    """Draws float32 inputs: unit keys, a decay a head near 1, moderate noise; random slots."""
    rng = np.random.default_rng(0)
    heads = (shape.B, shape.T, shape.H)
    if isinstance(shape, SlotShape):
        return _slot_inputs(rng, shape)
    k = rng.standard_normal((*heads, shape.D))
    drawn = {
        "q": rng.standard_normal((*heads, shape.D)),
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.standard_normal((*heads, shape.M)),
        "log_decay": -rng.exponential(0.05, heads),
    }
    if name == "kalman_memory":
        drawn["process_var"] = rng.uniform(0.0, 0.1, heads)
        drawn["obs_var"] = rng.uniform(0.05, 0.5, heads)
    elif name == "delta_rule":
        drawn["beta"] = rng.uniform(0.0, 1.0, heads)
    return {key: jnp.asarray(x, jnp.float32) for key, x in drawn.items()}


def _slot_inputs(rng: np.random.Generator, shape: SlotShape) -> dict[str, jax.Array]:
    """Draws values, gates and the addresses of random scores of binary digits (S = 2^U)."""
    heads = (shape.B, shape.T, shape.H)
    drawn = {"v": rng.standard_normal((*heads, shape.M)), "forget": rng.standard_normal(heads)}
    inputs = {key: jnp.asarray(x, jnp.float32) for key, x in drawn.items()}
    for side in ("write", "read"):
        logits = rng.standard_normal((*heads, 2 * (shape.S.bit_length() - 1)))
        address = ops.product_topk(jnp.asarray(logits, jnp.float32), base=2, k=shape.K)
        inputs |= {f"{side}_ids": address.ids, f"{side}_weights": address.weights}
    return inputs


def _exact(name: str, shape: Shape | SlotShape, inputs: dict[str, jax.Array]) -> np.ndarray:
    """The output of the token recurrence in float64."""
    with jax.enable_x64(True):
        wide = {
            key: jnp.asarray(np.asarray(x, np.float64 if jnp.issubdtype(x, jnp.floating) else None))
            for key, x in inputs.items()
        }
        return np.asarray(_call(name, shape, "recurrent", None)(wide))


def _compile(row, forward, inputs, exact) -> _Race:
    """Compiles one form and mode, and measures its memory and error."""
    varied = {key: x for key, x in inputs.items() if jnp.issubdtype(x, jnp.floating)}

    def loss(varied, inputs):
        return jnp.sum(forward(inputs | varied))

    def both(inputs):
        return jax.value_and_grad(loss)({key: inputs[key] for key in varied}, inputs)

    program = jax.jit(forward if row["mode"] == "fwd" else both).lower(inputs).compile()
    memory = program.memory_analysis()
    error = np.asarray(forward(inputs), np.float64) - exact
    row |= {
        "dtype": "float32",
        "relative_error": float(np.linalg.norm(error) / np.linalg.norm(exact)),
        "peak_bytes": int(memory.temp_size_in_bytes) if memory is not None else None,
        "device": jax.devices()[0].device_kind,
        "versions": versions(),
    }
    return _Race(row, program, inputs, [])


def _milliseconds(program: Any, inputs: dict[str, jax.Array]) -> float:
    jax.block_until_ready(program(inputs))
    begin = time.perf_counter()
    jax.block_until_ready(program(inputs))
    return 1e3 * (time.perf_counter() - begin)


@functools.cache
def versions() -> dict[str, str]:
    """Returns the versions of what was measured."""
    return {"bayesmem": bayesmem.__version__} | {p: version(p) for p in ("jax", "jaxlib", "numpy")}


def format_rows(rows: list[dict[str, Any]]) -> str:
    """Returns a table of rows, each time also as a multiple of the token recurrence's."""
    lines = [
        f"{'op':17}{'form':12}{'mode':9}{'B T H D (or S K) M':>21}{'chunk':>6}{'ms':>10}"
        f"{'speedup':>9}{'error':>10}{'peak MB':>9}"
    ]
    slowest: dict[tuple[Any, ...], float] = {}
    for row in rows:
        sizes = " ".join(str(row[axis]) for axis in "BTHDSKM" if axis in row)
        key = (row["op"], row["mode"], sizes)
        base = slowest.setdefault(key, row["wall_ms"])
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.1f}"
        lines.append(
            f"{row['op']:17}{row['implementation']:12}{row['mode']:9}{sizes:>21}"
            f"{row['chunk_size'] or '-':>6}{row['wall_ms']:10.2f}"
            f"{base / row['wall_ms']:8.1f}x{row['relative_error']:10.1e}{peak:>9}"
        )
    return "\n".join(lines)
