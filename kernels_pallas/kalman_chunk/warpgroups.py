"""How kernels are launched, and how the warpgroups of a program work together."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import registers


def mosaic_kernel(body: Callable[..., None], out: Any, scratch: Any, **options: Any) -> Any:
    """`plgpu.kernel` with the names that this version of JAX has for outputs and scratch.

    Option `sum_bytes` of shared memory are for sums over rows, which one warpgroup only may take.
    """
    known = inspect.signature(plgpu.kernel).parameters
    named = {
        "out_type" if "scratch_types" in known else "out_shape": out,
        "scratch_types" if "scratch_types" in known else "scratch_shapes": scratch,
    }
    params = plgpu.CompilerParams(
        approx_math=True,  # exp2 of a decay, to 2 ulp
        lowering_semantics=plgpu.LoweringSemantics.Lane,
        unsafe_no_auto_barriers=True,
        reduction_scratch_bytes=options.pop("sum_bytes", 2048),
    )
    return plgpu.kernel(body, compiler_params=params, **named, **options)


def members(team: int) -> dict[str, Any]:
    """Options of a kernel whose programs are run by `team` warpgroups."""
    return {"num_threads": team, "thread_name": "member"} if team > 1 else {}


def split_up(team: int, run: Callable[[int], None]) -> None:
    """Runs `run(i)` in warpgroup i."""
    if team == 1:
        run(0)
        return
    for member in range(team):
        pl.when(jax.lax.axis_index("member") == member)(functools.partial(run, member))


def meeting(team: int) -> list[Any]:
    """What the warpgroups of a program need to `meet`."""
    return [plgpu.Barrier(num_arrivals=team)] if team > 1 else []


def meet(met: Sequence[Any]) -> None:
    """Waits for all warps of a program; what any has stored is seen by all."""
    plgpu.commit_smem()
    for barrier in met:
        plgpu.barrier_arrive(barrier)
        plgpu.barrier_wait(barrier)


def show(plain: bool) -> None:
    """Orders what this warpgroup, and copies that it waited for, wrote before what others read.

    Before arriving at a barrier of a cluster, and after having waited for one. `plain` is for the
    interpreter, where everything is ordered.
    """
    plgpu.commit_smem()  # some threads arrive for all, some have waited for copies
    if not plain:
        registers.fence_cluster()
