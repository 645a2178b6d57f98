"""Parts of the benchmark: repeated calls, counts, exact outputs, tables, failures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.evaluate import device_time, speed, speed_counts, speed_inputs, speed_table
from bayesmem.evaluate.speed_options import Options
from kernels_pallas.shapes import Shape, SlotShape
from tests.tolerances import assert_close, tolerance

SHAPE = Shape(8, 2048, 4, 256, 256)


def test_a_repeated_call_costs_as_often_and_nothing_is_cut():
    case = speed_inputs.draw_case("kalman_memory", Shape(1, 256, 1, 16, 16), "float32")
    call = speed_inputs.caller("kalman_memory", case.shape, "recurrent", None)

    def function(state, inputs):
        return speed_inputs.gradients(call, inputs, case.cotangent), state

    least = {}
    for times in (2, 16):
        program = jax.jit(device_time.repeated(function, times))
        program({}, case.inputs)
        runs = [
            device_time.milliseconds(lambda p=program: jax.block_until_ready(p({}, case.inputs)))
            for _ in range(5)
        ]
        least[times] = min(runs)
    assert least[16] > 4 * least[2]  # eight times, on a machine that does other things too
    _, number = program({}, case.inputs)
    (output, found), _ = function({}, case.inputs)
    firsts = [x[(0,) * x.ndim] for x in (output, *found.values())]
    assert_close(number, 16 * np.sum(firsts), "float32", length=256)


def test_state_goes_from_call_to_call():
    program = device_time.repeated(lambda state, x: (state, state + x), 5)
    state, number = program(jnp.float32(1), jnp.float32(2))
    assert state == 11 and number == 1 + 3 + 5 + 7 + 9


def test_calls_in_a_loop_and_their_times():
    assert [device_time.calls_in_loop(ms) for ms in (0, 0.5, 6, 500)] == [64, 32, 4, 1]
    calls = []
    timer = device_time.replay_timer(lambda: calls.append(1), lambda: calls.append(0), 4.0)
    assert timer() > 0
    assert calls == 2 * [1, 1, 1, 1, 0]
    looped = device_time.loop_timer(lambda s, x: (x + s, s), jnp.ones(3), jnp.ones(3), 10.0)
    assert looped() > 0 and looped() > 0


def row(**changes):
    found = {"op": "kalman_memory", "implementation": "pallas", "mode": "fwd", **SHAPE._asdict()}
    found |= {"chunk_size": 64, "dtype": "bfloat16", "gpu_ms": 0.5, "device": "NVIDIA H200"}
    found |= {"wall_ms": 0.6, "wall_ms_low": 0.5, "wall_ms_high": 0.7, "relative_error": 4e-3}
    found |= {"peak_bytes": 200_000_000, "temp_bytes": 0, "versions": {"jax": "0.11.2"}}
    found["flops"] = speed_counts.count_flops("kalman_memory", SHAPE, "fwd")
    return found | {"bytes": 134_000_000} | changes


def test_flops_and_bytes():
    assert speed_counts.count_flops("kalman_memory", SHAPE, "fwd") == 42_949_672_960
    assert speed_counts.count_flops("delta_rule", SHAPE, "fwd+bwd") == 3 * 65_536 * 6 * 65_536
    slots = SlotShape(1, 1, 2, 64, 4, 16)
    assert speed_counts.count_flops("slot_memory", slots, "step") == 2 * 5 * 4 * 16
    case = speed_inputs.draw_case("delta_rule", Shape(1, 3, 2, 4, 5), "bfloat16")
    vectors, output, gates = 6 * (4 + 4 + 5) * 2, 6 * 5 * 2, 6 * 2 * 4
    forward = speed_counts.count_bytes(case.inputs, case.exact.astype("f2"), case.shape, "fwd")
    assert forward == vectors + gates + output
    both = speed_counts.count_bytes(case.inputs, case.cotangent, case.shape, "fwd+bwd")
    assert both == 2 * (vectors + gates + output)
    step = speed_inputs.draw_case("slot_memory", slots, "float32")
    found = speed_counts.count_bytes(step.inputs, step.cotangent, slots, "step")
    assert found == 4 * 2 * (16 + 1 + 16 + 4 * 4 + 2 * 4 * 17 + 4 * 16)


def test_roofline_of_an_h200():
    limit = tolerance("float64")["rtol"]
    assert speed_counts.roofline(row()) == pytest.approx(42_949_672_960 / 418e12 / 5e-4, rel=limit)
    small = row(op="delta_rule", flops=10**9)
    assert speed_counts.roofline(small) == pytest.approx(134e6 / 4.19e12 / 5e-4, rel=limit)
    dense = speed_counts.roofline(row(op="delta_rule"))
    assert dense == pytest.approx(42_949_672_960 / 763e12 / 5e-4, rel=limit)
    assert speed_counts.roofline(row(device="cpu")) is None
    assert speed_counts.roofline(row(gpu_ms=None)) is None


def test_impossible_times_are_noted():
    found = row(note=None, gpu_ms=None)
    timed = speed._finished(device_time.Race(found, None, None, [3.0, 1.0, 2.0], [1e-3]))
    assert (timed["wall_ms_low"], timed["wall_ms"], timed["wall_ms_high"]) == (1.5, 2, 2.5)
    assert timed["gpu_ms"] == 1e-3 and "faster than this device can be" in timed["note"]


def test_mesa_net_solves_its_system():
    shape = Shape(1, 6, 1, 3, 2)
    case = speed_inputs.draw_case("mesa_net", shape, "float32")
    x = {key: np.asarray(value, np.float64) for key, value in case.inputs.items()}
    for t in range(shape.T):
        keys, values = np.diag(x["ridge"][0]), np.zeros((3, 2))
        for s in range(t + 1):
            weight = x["beta"][0, s, 0] * np.exp(x["log_decay"][0, s + 1 : t + 1, 0].sum())
            keys = keys + weight * np.outer(x["k"][0, s, 0], x["k"][0, s, 0])
            values = values + weight * np.outer(x["k"][0, s, 0], x["v"][0, s, 0])
        wanted = values.T @ np.linalg.solve(keys, x["q"][0, t, 0])
        assert_close(case.exact[0, t, 0], wanted, "float64")


def test_exact_gradients_are_those_of_the_first_sequence():
    shape = Shape(2, 5, 1, 3, 3)
    found = speed_inputs.exact_gradients("delta_rule", shape, "float32")
    case = speed_inputs.draw_case("delta_rule", shape, "float32")
    call = speed_inputs.caller("delta_rule", shape, "chunked", 4)
    _, both = speed_inputs.gradients(call, case.inputs, case.cotangent)
    assert set(found) == set(case.inputs)
    compare = speed_inputs.compare_gradients
    assert compare(both, found)["gradient_error"] < tolerance("float32", "gradient")["rtol"]
    wrong = compare(both | {"v": -both["v"]}, found)
    assert max(wrong["gradient_errors"], key=wrong["gradient_errors"].get) == "v"
    assert wrong["gradient_error"] == wrong["gradient_errors"]["v"] > 1
    wrong = compare(both | {"v": both["v"] * jnp.nan}, found)
    assert np.isnan(wrong["gradient_error"]) and np.isnan(wrong["gradient_errors"]["v"])


def test_a_form_that_fails_keeps_its_reason(monkeypatch, caplog):
    def fails(*arguments, **options):
        if options["implementation"] == "chunked":
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")
        return speed_inputs.ops.delta_rule(*arguments, **options)

    monkeypatch.setitem(speed_inputs.OPS, "delta_rule", (fails, ("recurrent", "chunked")))
    speed_inputs.draw_case.cache_clear()
    rows = list(speed.bench_ops("quick", Options(1, ops=["delta_rule"])))
    assert [row["note"] is None for row in rows] == [True, False, True, False]
    assert rows[1]["note"] == "RESOURCE_EXHAUSTED: out of memory"
    assert rows[1]["wall_ms"] is rows[1]["relative_error"] is None
    assert "delta_rule chunked fwd failed" in caplog.text
    assert "RESOURCE_EXHAUSTED" in speed_table.format_rows(rows)
    speed_inputs.draw_case.cache_clear()


def test_tables():
    rows = [
        row(implementation="recurrent", chunk_size=None, gpu_ms=None, wall_ms=6.0),
        row(roofline=0.5),
        row(op="delta_rule", implementation="fla", gpu_ms=0.25, note="gradients may be wrong"),
    ]
    text = speed_table.format_rows(rows).splitlines()
    assert text[2].split()[-6:] == ["0.600", "10.0x", "4.0e-03", "-", "200.0", "50.0%"]
    assert text[4] == "  (gradients may be wrong)"
    page = speed_table.speed_section({"bench_ops_h200.json": rows}, "there")
    assert "### [bench_ops_h200.json](there/bench_ops_h200.json)" in page
    assert "#### B=8, T=2048, H=4, D=256, M=256, bfloat16" in page
    assert "gradient error |" not in page and "| note |" in page
    line = "| `kalman_memory` | pallas | fwd | 64 | 0.500 | 2.00 | 0.600 (0.500-0.700) | 10.0x |"
    assert line + " 4.0e-03 | 200 | 0 | 50.0% | - |" in page
    old = {key: x for key, x in rows[1].items() if key not in ("gpu_ms", "temp_bytes", "roofline")}
    page = speed_table.speed_section({"old.json": [old]}, "there")
    assert "| op | form | mode | chunk | wall ms | error |" in page
