"""Peers, with a torch and an fla of NumPy in their place."""

import contextlib
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from bayesmem.evaluate import baselines, peers, speed
from bayesmem.evaluate.speed_options import Options
from kernels_pallas.shapes import Shape, SlotShape
from tests.tolerances import tolerance


class Tensor:
    """What of a tensor the benchmark uses."""

    def __init__(self, array):
        self.array = array

    def to(self, device, dtype):
        assert device == "cuda"
        return Tensor(jnp.asarray(self.array, dtype))

    def requires_grad_(self, wanted):
        assert wanted in (True, False)
        return self

    def detach(self):
        return self

    cpu = detach

    def float(self):
        return Tensor(jnp.asarray(self.array, jnp.float32))

    def numpy(self):
        return np.asarray(self.array)


class Graph:
    def replay(self):
        pass


@contextlib.contextmanager
def no_recording(*_, **__):
    raise RuntimeError("operation not permitted when stream is capturing")
    yield


@pytest.fixture
def modules(monkeypatch):
    """Fakes of torch and fla; returns them by name."""
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        memory_allocated=lambda: 1000,
        max_memory_allocated=lambda: 3000,
        reset_peak_memory_stats=lambda: None,
        synchronize=lambda: None,
        current_stream=lambda: types.SimpleNamespace(wait_stream=lambda other: None),
        Stream=lambda: types.SimpleNamespace(wait_stream=lambda other: None),
        stream=contextlib.nullcontext,
        CUDAGraph=Graph,
        graph=lambda graph, capture_error_mode: contextlib.nullcontext(),
    )
    torch = types.ModuleType("torch")
    torch.cuda, torch.no_grad, torch.from_numpy = cuda, contextlib.nullcontext, Tensor
    torch.float32, torch.bfloat16, torch.__version__ = jnp.float32, jnp.bfloat16, "2.11.0"
    # Gradients of nothing are enough to see that they are asked for, of what and with what.
    torch.autograd = types.SimpleNamespace(grad=lambda output, given, do: [x for x in given])

    def gated(q, k, v, g, beta, scale):
        assert scale == 1.0
        x = {"log_decay": g.array, "beta": beta.array, "implementation": "recurrent"}
        return Tensor(ops.delta_rule(q.array, k.array, v.array, **x)[0]), None

    def mesa(q, k, v, g, beta, lamb, max_CG_iteration):  # noqa: N803
        assert max_CG_iteration == 30
        x = (q, k, v, g, beta, lamb)
        return Tensor(baselines.mesa_net(*(t.array for t in x))[0]), None, None

    names = ("fla", "fla.ops", "fla.ops.gated_delta_rule", "fla.ops.mesa_net")
    made = {name: types.ModuleType(name) for name in (*names, "fla.ops.common.chunk_o")}
    made["fla"].__version__ = "0.6.0"
    made["fla.ops.gated_delta_rule"].chunk_gated_delta_rule = gated
    made["fla.ops.mesa_net"].chunk_mesa_net = mesa
    guard = made["fla.ops.common.chunk_o"]
    guard.IS_NVIDIA_HOPPER = guard.TRITON_ABOVE_3_4_0 = True
    guard.TRITON_ABOVE_3_7_1 = False
    made["torch"] = torch
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(peers, "version", lambda name: "3.6.0")
    peers.lift_guard.cache_clear()
    speed.versions.cache_clear()
    yield made
    speed.versions.cache_clear()


def test_rows_of_fla_are_beside_ours(modules):
    options = Options(
        2, ops=["delta_rule", "mesa_net"], forms=["chunked"], dtype="bfloat16", peers=["fla"]
    )
    rows = list(speed.bench_ops("quick", options))
    found = [(row["op"], row["implementation"], row["mode"]) for row in rows]
    assert found[:3] == [
        ("delta_rule", "chunked", "fwd"),
        ("delta_rule", "fla", "fwd"),
        ("mesa_net", "fla", "fwd"),
    ]
    assert [mode for _, _, mode in found[3:]] == 3 * ["fwd+bwd"]
    for row in (row for row in rows if row["implementation"] == "fla"):
        assert row["dtype"] == "bfloat16" and row["peak_bytes"] == 2000
        assert 0 < row["relative_error"] < tolerance("bfloat16")["rtol"]
        assert row["gpu_ms"] > 0 and row["gpu_ms_by"] == "graph" and row["wall_ms"] > 0
        wanted = {"torch": "2.11.0", "triton": "3.6.0", "fla": "0.6.0"}
        assert wanted.items() <= row["versions"].items()
        lifted = (row["op"], row["mode"]) == ("delta_rule", "fwd+bwd")
        assert ("gradients may be wrong" in (row["note"] or "")) == lifted
    assert set(rows[0]) == set(rows[1]) and "torch" not in rows[0]["versions"]


def test_the_guard_is_lifted_only_where_it_is_in_force(modules):
    guard = modules["fla.ops.common.chunk_o"]
    assert "timed nevertheless" in peers.lift_guard() and guard.TRITON_ABOVE_3_7_1 is True
    peers.lift_guard.cache_clear()
    guard.IS_NVIDIA_HOPPER = guard.TRITON_ABOVE_3_7_1 = False
    assert peers.lift_guard() is None and guard.TRITON_ABOVE_3_7_1 is False


def test_kernels_are_summed_where_no_graph_can_be_recorded(modules):
    torch = modules["torch"]
    torch.cuda.graph = no_recording
    events = [types.SimpleNamespace(self_device_time_total=x) for x in (1500.0, 3000.0)]
    profile = types.SimpleNamespace(key_averages=lambda: events)
    torch.profiler = types.SimpleNamespace(
        profile=lambda activities: contextlib.nullcontext(profile),
        ProfilerActivity=types.SimpleNamespace(CUDA="cuda"),
    )
    by, device_ms = peers._device_timer(lambda: None, 1.0)
    assert by == "profiler" and device_ms() == 1.5


def test_what_cannot_be_timed(modules, monkeypatch):
    assert peers.times("fla", "mesa_net", Shape(1, 2, 1, 128, 128))
    assert not peers.times("fla", "mesa_net", Shape(1, 2, 1, 256, 256))
    assert not peers.times("fla", "mesa_net", Shape(1, 2, 1, 32, 64))
    assert peers.times("fla", "delta_rule", Shape(1, 2, 1, 256, 256))
    assert not peers.times("fla", "kalman_memory", Shape(1, 2, 1, 16, 16))
    assert not peers.times("fla", "slot_memory", SlotShape(1, 2, 1, 16, 2, 4))
    peers.require(["fla"])
    modules["torch"].cuda.is_available = lambda: False
    with pytest.raises(NotImplementedError, match="torch finds no GPU"):
        peers.require(["fla"])
    monkeypatch.setitem(sys.modules, "fla.ops.mesa_net", None)
    with pytest.raises(ImportError, match=r"peers: fla .* pip install -e '\.\[peers\]'"):
        peers.require(["fla"])
