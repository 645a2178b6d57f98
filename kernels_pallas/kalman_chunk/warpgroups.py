"""How kernels are launched, and how the warpgroups of a program work together."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels_pallas.kalman_chunk import registers
from kernels_pallas.kalman_chunk.chunks import BAND


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


def split_up(team: int, run: Callable[[Any], None], alike: bool = True) -> None:
    """Runs `run(i)` in warpgroup i.

    Instructions come no faster than a warpgroup takes them, so two that run the same copy of the
    code, with a traced `i`, are faster than two with a copy each.

    Args:
      team: how many warpgroups there are.
      run: what they do.
      alike: whether they do the same, but for `pl.when`; else `i` is a Python int.
    """
    if alike and team > 1:
        run(jax.lax.axis_index("member"))
        return
    for member in range(team):
        mine = team == 1 or jax.lax.axis_index("member") == member
        pl.when(mine)(functools.partial(run, member))


class Shares:
    """Which bands of value channels each warpgroup of a program takes: every `team`-th."""

    def __init__(self, bands: int, team: int):
        """Of how many there are, and how many warpgroups."""
        self.alike = bands % team == 0
        """Whether all have as many."""
        self._bands, self._team = bands, team

    def any(self, member: Any) -> bool:
        """Whether a warpgroup has any."""
        return self._bands >= self._team or member < self._bands

    def of(self, member: Any) -> list[Any]:
        """Slices of the channels; `member` is a Python int where not all have as many."""
        count = self._bands // self._team
        if not self.alike:
            count = len(range(member, self._bands, self._team))
        return [pl.ds((i * self._team + member) * BAND, BAND) for i in range(count)]

    def meet(self, met: Sequence[Any]) -> None:
        """Waits for all before an array takes the place of another; each calls it as often.

        What a warpgroup has of either lies in the same bytes, so its own work would be enough to
        wait for. The interpreter takes a place as a whole, and a meeting costs next to nothing.
        """
        if self._bands >= self._team:
            meet(met)
        else:  # nobody shares it
            plgpu.commit_smem()


def chosen(values: Sequence[jax.Array], member: Any) -> jax.Array:
    """Which of two values in registers is that of a warpgroup."""
    if isinstance(member, int):
        return values[member]
    return jax.lax.select(member == 0, *values)


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
        registers.fence("acq_rel.cluster", "proxy.async.global")
