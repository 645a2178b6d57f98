"""Kernels of other libraries, timed on our inputs; what they need is imported only when asked for.

fla is flash-linear-attention (https://github.com/fla-org/flash-linear-attention), signatures of
0.6.0: `chunk_gated_delta_rule` computes `ops.delta_rule` with a scalar decay, `chunk_mesa_net` the
memory of `bayesmem.evaluate.baselines.mesa_net` by conjugate gradients.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from bayesmem.evaluate.device_time import Race, milliseconds, replay_timer
from bayesmem.evaluate.speed_counts import SOLVER_STEPS
from bayesmem.evaluate.speed_inputs import Case, compare_gradients, relative_error
from kernels_pallas.shapes import Shape, SlotShape

PEERS = {"fla": ("delta_rule", "mesa_net")}
"""Peer and the ops that it is timed as."""
_MESA_MAX = 128
"""Largest head of fla's MesaNet."""
_UNSAFE = (
    "gradients may be wrong: fla refuses this pass on Hopper with Triton 3.4.0 to 3.7.0, and is "
    "timed nevertheless"
)


def require(names: Sequence[str]) -> None:
    """Raises unless these peers can be timed here.

    Raises:
      ImportError: a peer, or torch, is not installed.
      NotImplementedError: torch finds no GPU.
    """
    for name in names:
        for module in ("torch", *(f"{name}.ops.{op}" for op in ("gated_delta_rule", "mesa_net"))):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise ImportError(
                    f"peers: {name} cannot be imported ({error}); install it by "
                    "pip install -e '.[peers]'"
                ) from error
    if not _torch().cuda.is_available():
        raise NotImplementedError("peers: torch finds no GPU, and the peers' kernels need one")


def other_ops(names: Sequence[str], ours: Iterable[str]) -> list[str]:
    """Returns the ops of these peers that are none of ours."""
    return sorted({op for name in names for op in PEERS.get(name, ())} - set(ours))


def times(name: str, op: str, shape: Shape | SlotShape) -> bool:
    """Says whether a peer has this op at this shape."""
    if isinstance(shape, SlotShape) or op not in PEERS[name]:
        return False
    return op != "mesa_net" or shape.D == shape.M <= _MESA_MAX


def versions(name: str) -> dict[str, str]:
    """Returns the versions of a peer and of what it runs on; none for a form of ours."""
    if name not in PEERS:
        return {}
    torch, peer = _torch(), importlib.import_module(name)
    return {"torch": torch.__version__, "triton": version("triton"), name: peer.__version__}


def build(row: dict[str, Any], case: Case, exact: Callable[[], Any] | None) -> Race:
    """Returns the race of a peer, with its memory and errors in its row.

    Args:
      row: as `bayesmem.evaluate.speed` makes it; filled in.
      case: inputs, of which the peer gets the same numbers in the same dtype.
      exact: returns the exact gradients for the first sequence; None to leave them out.

    Raises:
      RuntimeError: the peer failed, or is out of memory.
    """
    torch = _torch()
    backward = row["mode"] == "fwd+bwd"
    before = torch.cuda.memory_allocated()
    tensors = {key: _tensor(x).requires_grad_(backward) for key, x in case.inputs.items()}
    cotangent = _tensor(case.cotangent) if backward else None
    if backward and case.name == "delta_rule":
        row["note"] = lift_guard()
    forward = _CALLS[case.name]

    def start():
        if not backward:
            with torch.no_grad():
                return forward(**tensors), ()
        output = forward(**tensors)
        return output, torch.autograd.grad(output, list(tensors.values()), cotangent)

    def run():
        start()
        torch.cuda.synchronize()

    output, found = start()  # compiles and tunes
    row["relative_error"] = relative_error(_array(output), case.exact)
    if exact is not None:
        wanted, arrays = exact(), dict(zip(tensors, found, strict=True))
        row |= compare_gradients({key: _array(arrays[key]) for key in wanted}, wanted)
    del output, found
    torch.cuda.reset_peak_memory_stats()
    run()
    row["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    row["gpu_ms_by"], device_ms = _device_timer(start, milliseconds(run))
    return Race(row, run, device_ms, [], [])


def _delta_rule(q, k, v, log_decay, beta):
    call = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    return call(q, k, v, g=log_decay, beta=beta, scale=1.0)[0]


def _mesa_net(q, k, v, log_decay, beta, ridge):
    call = importlib.import_module("fla.ops.mesa_net").chunk_mesa_net
    steps = {"max_CG_iteration": SOLVER_STEPS}
    return call(q, k, v, g=log_decay, beta=beta, lamb=ridge, **steps)[0]


_CALLS: dict[str, Callable[..., Any]] = {"delta_rule": _delta_rule, "mesa_net": _mesa_net}


def _torch() -> Any:
    return importlib.import_module("torch")


def _tensor(x: Any) -> Any:
    """A JAX array as a tensor on the GPU; by way of float32, which holds every bfloat16."""
    torch = _torch()
    tensor = torch.from_numpy(np.array(x, np.float32))
    return tensor.to(device="cuda", dtype=getattr(torch, x.dtype.name))


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


@functools.cache
def lift_guard() -> str | None:
    """Lifts fla's refusal of the gated backward pass, if it is in force; returns what to note."""
    module: Any = importlib.import_module("fla.ops.common.chunk_o")
    refused = module.IS_NVIDIA_HOPPER and module.TRITON_ABOVE_3_4_0
    if not refused or module.TRITON_ABOVE_3_7_1:
        return None
    module.TRITON_ABOVE_3_7_1 = True  # in that module nothing else reads it
    return _UNSAFE


def _device_timer(start: Callable[[], Any], wall_ms: float) -> tuple[str, Callable[[], float]]:
    """A name and a measurement of a call's time on the device: a recorded graph, or a profile."""
    torch = _torch()
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                start()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # JAX has threads of its own, whose calls must not break the recording.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            start()
        return "graph", replay_timer(graph.replay, torch.cuda.synchronize, wall_ms)
    except RuntimeError:
        torch.cuda.synchronize()
        return "profiler", lambda: _profiled(start)


def _profiled(start: Callable[[], Any], calls: int = 3) -> float:
    """The sum of the times of the kernels of one call, in ms."""
    torch = _torch()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            start()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e3 / calls
