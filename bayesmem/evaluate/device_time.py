"""Times of a call: as its caller sees it, and on the device alone."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

LOOP_MS = 20.0
"""Wall time that a loop of calls should take: launch and wait, about 0.1 ms, are then under 1%."""


class Race(NamedTuple):
    """One program that takes turns with others, its row of results and its times in milliseconds.

    `run` makes one call and waits for it, or is None if the program failed; `device_ms` returns a
    call's time on the device, or is None where there is no device but the host.
    """

    row: dict[str, Any]
    run: Callable[[], Any] | None
    device_ms: Callable[[], float] | None
    wall: list[float]
    device: list[float]


def milliseconds(run: Callable[[], Any]) -> float:
    """Returns the wall time of one call, in ms."""
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def calls_in_loop(wall_ms: float) -> int:
    """Returns how many calls make a loop of about `LOOP_MS`: a power of two, 1 to 64.

    Times of another run differ a little. A power of two mostly stays, and with it the program in
    JAX's compilation cache.
    """
    return min(64, max(1, 2 ** round(math.log2(LOOP_MS / max(wall_ms, 1e-3)))))


def repeated(function: Callable[[Any, Any], tuple[Any, Any]], times: int) -> Callable[..., Any]:
    """Returns the program that calls `function` so many times, one after the other.

    No call can be dropped, merged with another or moved out of the loop: its inputs pass a barrier
    together with a number that is made from every output of the call before. The barrier costs
    nothing, where adding that number to the inputs would cost a pass over them.

    Args:
      function: (state, inputs) -> (outputs, state); a call's state goes into the next call.
      times: calls, at least 1.

    Returns:
      (state, inputs) -> (state, that number), to be compiled.
    """

    def program(state, inputs):
        def body(_, carried):
            state, number = carried
            held, number = jax.lax.optimization_barrier((inputs, number))
            outputs, state = function(state, held)
            # Of a whole output one element is read; the barrier keeps the others from being cut.
            leaves = jax.lax.optimization_barrier(jax.tree.leaves(outputs))
            for leaf in leaves:
                number = number + leaf[(0,) * leaf.ndim].astype(jnp.float32)
            return state, number

        return jax.lax.fori_loop(0, times, body, (state, jnp.float32(0)))

    return program


def loop_timer(
    function: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any, wall_ms: float
) -> Callable[[], float]:
    """Returns a measurement of a call's time inside one program of many calls, in ms.

    Args:
      function: as in `repeated`.
      state: of the first call; donated.
      inputs: of every call.
      wall_ms: of one call, from which the number of calls is chosen.
    """
    times = calls_in_loop(wall_ms)
    jitted = jax.jit(repeated(function, times), donate_argnums=0)
    program = jitted.lower(state, inputs).compile()

    def run():
        nonlocal state
        state, number = program(state, inputs)
        jax.block_until_ready((state, number))

    run()
    return lambda: milliseconds(run) / times


def replay_timer(replay: Callable[[], Any], wait: Callable[[], Any], wall_ms: float):
    """Returns a measurement of a call's time among many without waiting in between, in ms.

    Args:
      replay: starts one call that costs the host next to nothing, such as a recorded graph.
      wait: waits for all calls.
      wall_ms: of one call, from which the number of calls is chosen.
    """
    times = calls_in_loop(wall_ms)

    def run():
        for _ in range(times):
            replay()
        wait()

    run()
    return functools.partial(_per_call, run, times)


def _per_call(run: Callable[[], Any], times: int) -> float:
    return milliseconds(run) / times
