"""Time, memory and error of every form of every op, on the shapes of `kernels_pallas.shapes`."""

import functools
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bayesmem
from bayesmem.evaluate import peers
from bayesmem.evaluate.device_time import Race, loop_timer, milliseconds, repeated
from bayesmem.evaluate.speed_counts import count_bytes, count_flops, roofline
from bayesmem.evaluate.speed_inputs import (
    OPS,
    STATE,
    Case,
    caller,
    compare_gradients,
    draw_case,
    exact_gradients,
    gradients,
    relative_error,
)
from bayesmem.evaluate.speed_options import MODES, STEP, Options, all_ops, check_options
from kernels_pallas.shapes import CHUNK_SIZES, DTYPES, SLOT_SUITES, SUITES, Shape, SlotShape

logger = logging.getLogger("bayesmem")

AnyShape = Shape | SlotShape

NO_STEP = ("touched", "segmented", "plain")
"""Forms that are not meant for one token."""
TOKENS = 64
"""Tokens of one timed call in that mode, one after the other in one program; times are a token's.

A call of a program this small would measure whether JAX hands it to another thread.
"""


def bench_ops(suite: str, options: Options | None = None) -> Iterator[dict[str, Any]]:
    """Times forms of ops; all that are timed at one shape and mode take turns.

    Args:
      suite: a key of `kernels_pallas.shapes.SUITES`. Shapes of one token are timed as steps of
        decoding, and all those shapes of an op take turns, so that their ratio holds.
      options: None for all forms, 20 repeats.

    Yields:
      One row a form and mode: op, implementation (a form, or a peer's name), mode, B, T, H, D, M
      (of the slot memory B, T, H, S, K, M), chunk_size (None for forms without), dtype, gpu_ms
      (median, device alone; None without a GPU) with gpu_ms_low and gpu_ms_high (quartiles) and
      gpu_ms_by (how it was measured), wall_ms, wall_ms_low, wall_ms_high (host included),
      relative_error (of the output, against the token recurrence in float64 on the same inputs),
      gradient_errors (by input, first sequence of the batch; None unless asked for, and of
      baselines) and
      gradient_error (the largest of them),
      peak_bytes (inputs, outputs and temporaries), temp_bytes (temporaries alone; None for peers),
      bytes and flops (the fewest, see `bayesmem.evaluate.speed_counts`), roofline (the least time
      of this device over gpu_ms), note, device, versions. Numbers of a form that failed are None,
      and `note` says why; a kernel that does not exist for the shape or device has no row.

    Raises:
      ValueError: unknown suite, op, form, D, dtype or peer, no repeats, or a chunk size below 1.
      ImportError: a peer is not installed.
      NotImplementedError: peers are asked for without a GPU.
    """
    options = options or Options()
    check_options(suite, options)
    if options.peers:
        peers.require(options.peers)
    dtype = options.dtype or DTYPES.get(suite, "float32")
    for cases in _groups(suite, options):
        races: list[Race] = []
        for name, shape, mode in cases:
            case = draw_case(name, shape, dtype)
            for build, row in _builders(suite, case, mode, options):
                races.extend(_started(build, row, row["implementation"] in options.forms))
        running = [race for race in races if race.run is not None]
        for _ in range(options.repeats):
            running = [race for race in running if _take_turn(race)]
        for race in races:
            yield _finished(race)


def _groups(suite: str, options: Options) -> Iterator[list[tuple[str, AnyShape, str]]]:
    """Yields what takes turns: lists of (op, shape, mode)."""
    names = [op for op in all_ops(options) if not options.ops or op in options.ops]
    memories = [name for name in names if name != "slot_memory"]
    modes = [mode for mode in MODES if _asked(mode, options)]
    shape: AnyShape
    for shape in SUITES[suite]:
        if options.dims and shape.D not in options.dims:
            continue
        timed = [
            name
            for name in memories
            if name in OPS or any(peers.times(peer, name, shape) for peer in options.peers)
        ]
        for mode in modes:
            yield [(name, shape, mode) for name in timed]
    if "slot_memory" in names and not options.dims:
        slots: Sequence[AnyShape] = SLOT_SUITES[suite]
        steps = [("slot_memory", shape, STEP) for shape in slots if shape.T == 1]
        if steps and _asked(STEP, options):
            yield steps
        for shape in slots:
            if shape.T > 1:
                yield from ([("slot_memory", shape, mode)] for mode in modes)


def _asked(mode: str, options: Options) -> bool:
    return not options.modes or mode in options.modes


def _builders(
    suite: str, case: Case, mode: str, options: Options
) -> Iterator[tuple[Callable[[dict[str, Any]], Race], dict[str, Any]]]:
    """Yields what makes a race of a row, and the row, for our forms and those of the peers."""
    exact = None
    # Not of a baseline: nobody is held to its gradients, and mesa_net's take minutes of solves.
    if options.gradient_errors and mode == "fwd+bwd" and case.name in OPS:
        exact = functools.partial(exact_gradients, *case[:2], case.cotangent.dtype.name)
    for form in OPS[case.name][1] if case.name in OPS else ():
        if options.forms and form not in options.forms:
            continue
        if mode == STEP and form in NO_STEP:
            continue
        chunked = form not in ("recurrent", "plain") and case.name != "slot_memory"
        length = options.chunk_size or CHUNK_SIZES.get((suite, case.name, form), 64)
        row = _row(case, form, mode) | {"chunk_size": length if chunked else None}
        yield functools.partial(_build, case=case, exact=exact), row
    for peer in options.peers:
        if mode in MODES and peers.times(peer, case.name, case.shape):
            yield functools.partial(peers.build, case=case, exact=exact), _row(case, peer, mode)


def _row(case: Case, form: str, mode: str) -> dict[str, Any]:
    """All keys of a row, in order; what is not known yet is None."""
    row = {"op": case.name, "implementation": form, "mode": mode, **case.shape._asdict()}
    row |= {"chunk_size": None, "dtype": case.cotangent.dtype.name}
    times = [f"{clock}_ms{end}" for clock in ("gpu", "wall") for end in ("", "_low", "_high")]
    errors = ("relative_error", "gradient_error", "gradient_errors")
    row |= dict.fromkeys((*times, "gpu_ms_by", *errors, "peak_bytes", "temp_bytes"))
    return row | {
        "bytes": count_bytes(case.inputs, case.cotangent, case.shape, mode),
        "flops": count_flops(case.name, case.shape, mode),
        "roofline": None,
        "note": None,
        "device": jax.devices()[0].device_kind,
        "versions": versions(form),
    }


def _started(build, row: dict[str, Any], named: bool) -> list[Race]:
    """Builds a race; what cannot run here is left out, what fails keeps its reason."""
    label = f"{row['op']} {row['implementation']} {row['mode']}"
    try:
        return [build(row)]
    except NotImplementedError as error:
        if named:
            logger.warning("%s is left out: %s", label, error)
        return []
    except RuntimeError as error:  # JAX and torch: no memory left, a kernel that fails
        row["note"] = _reason(error)
        logger.warning("%s failed: %s", label, row["note"])
        return [Race(row, None, None, [], [])]


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _build(row: dict[str, Any], case: Case, exact) -> Race:
    """Compiles one of our forms in one mode, and measures its memory and errors."""
    call = caller(case.name, case.shape, row["implementation"], row["chunk_size"])
    mode = row["mode"]
    state = {key: x for key, x in case.inputs.items() if key in STATE}
    rest = {key: x for key, x in case.inputs.items() if key not in state}
    if mode == "fwd+bwd":
        rest["cotangent"] = case.cotangent

    def function(state, rest):
        given = rest | state
        if mode == "fwd+bwd":
            cotangent = given.pop("cotangent")
            return gradients(call, given, cotangent), state
        output, new = call(given)
        return output, new._asdict() if mode == STEP else state

    def start():
        return {key: jnp.array(x) for key, x in state.items()}  # donated; the case keeps its own

    program = jax.jit(function, donate_argnums=0).lower(state, rest).compile()
    tokens, run = 1, functools.partial(_wait, program, {}, rest)
    if mode == STEP:
        tokens = TOKENS
        many = jax.jit(repeated(function, TOKENS), donate_argnums=0).lower(state, rest).compile()
        run = functools.partial(_go_on, many, [start()], rest)
    outputs, _ = program(start(), rest)
    output, found = outputs if mode == "fwd+bwd" else (outputs, {})
    row["relative_error"] = relative_error(output, case.exact)
    if exact is not None:
        row |= compare_gradients(found, exact())
    memory = program.memory_analysis()
    if memory is not None:
        row["temp_bytes"] = int(memory.temp_size_in_bytes)
        live = memory.argument_size_in_bytes + memory.output_size_in_bytes
        row["peak_bytes"] = int(live - memory.alias_size_in_bytes) + row["temp_bytes"]
    if jax.default_backend() != "gpu":
        return Race(row, run, None, [], [])
    row["gpu_ms_by"] = "loop"
    run()
    wall = milliseconds(run) / tokens
    return Race(row, run, loop_timer(function, start(), rest, wall), [], [])


def _wait(program, state, rest) -> None:
    jax.block_until_ready(program(state, rest))


def _go_on(program, states: list[Any], rest) -> None:
    """Runs tokens from the state in `states`, and puts the one after them there."""
    state, number = program(states.pop(), rest)
    jax.block_until_ready(number)
    states.append(state)


def _take_turn(race: Race) -> bool:
    """Times one call of a race; says whether it can take another turn."""
    assert race.run is not None
    tokens = TOKENS if race.row["mode"] == STEP else 1
    try:
        race.run()
        race.wall.append(milliseconds(race.run) / tokens)
        if race.device_ms is not None:
            race.device.append(race.device_ms())
    except RuntimeError as error:  # no memory left beside the others
        race.row["note"] = _reason(error)
        return False
    return True


def _finished(race: Race) -> dict[str, Any]:
    row = race.row
    for clock, times in (("wall", race.wall), ("gpu", race.device)):
        if times:
            found = np.percentile(times, (50, 25, 75))
            for end, x in zip(("", "_low", "_high"), found, strict=True):
                row[f"{clock}_ms{end}"] = round(float(x), 4)
    row["roofline"] = roofline(row)
    if row["note"] is None and (row["roofline"] or 0) > 1:
        row["note"] = "faster than this device can be: the time or the count is wrong"
    return row


@functools.cache
def versions(implementation: str = "") -> dict[str, str]:
    """Returns the versions of what was measured, with those of the packages of its form."""
    found = {"bayesmem": bayesmem.__version__}
    found |= {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    if implementation == "triton" and importlib.util.find_spec("triton"):
        found |= {name: version(name) for name in ("triton", "jax-triton")}
    return found | peers.versions(implementation)
