"""What ops say of wrong arguments, at once, inside jit and inside compiled programs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem import ops
from tests.ops import cases

B, T, HK, H, D, M, G = 2, 5, 2, 4, 4, 6, 3
FUNCTIONS = {
    "kalman_memory": ops.kalman_memory,
    "kalman_predict": ops.kalman_predict,
    "delta_rule": ops.delta_rule,
    "linear_attention": ops.linear_attention,
}
KALMAN = ("kalman_memory", "kalman_predict")
MEMORIES = ("delta_rule", "linear_attention")
STRENGTHS = {"delta_rule": "beta", "linear_attention": "gain"}


@functools.cache
def _valid(op):
    sizes = {"batch": B, "key_heads": HK, "heads": H, "dim": D, "value_dim": M}
    if op in KALMAN:
        case = cases.kalman(0, T, "scalar", rotating=True, groups=G, packed=True, **sizes)
    else:
        case = cases.memory(0, T, STRENGTHS[op], "scalar", packed=True, **sizes)
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.int32 if x.dtype == np.int32 else jnp.float32), case
    )


def valid(op):
    """Arguments that the op takes."""
    return dict(_valid(op))


def call(op, case):
    """The op on arguments outside of any transformation."""
    return FUNCTIONS[op](**case)


def call_in_jit(op, case):
    """The op on arguments that are all traced but the static ones."""
    static = {n: x for n, x in case.items() if n in ("chunk_size", "implementation")}
    traced = {n: x for n, x in case.items() if n not in static}
    return jax.jit(lambda traced: FUNCTIONS[op](**traced, **static))(traced)


# Argument (state.x: a part of the state), and the shapes that it may have.
SHAPES = {
    "q": ((B, T, HK, D),),
    "k": ((B, T, HK, D),),
    "v": ((B, T, H, M),),
    "log_decay": ((B, T, H), (B, T, HK), (B, T, H, D), (B, T, HK, D)),
    "segment_ids": ((B, T),),
}
KALMAN_SHAPES = SHAPES | {
    "process_var": ((B, T, H), (B, T, HK)),
    "obs_var": ((B, T, H), (B, T, HK), (B, T, H, G), (B, T, HK, G)),
    "angle": ((B, T, H, D // 2), (B, T, HK, D // 2)),
    "prior_var": ((), (H,)),
    "state.mean": ((B, H, D, M),),
    "state.cov": ((B, H, G, D, D),),
}


def shapes(op):
    """Arguments of an op with the shapes that they may have."""
    if op in KALMAN:
        return KALMAN_SHAPES
    return SHAPES | {STRENGTHS[op]: ((B, T, H), (B, T, HK)), "state": ((B, H, D, M),)}


def replaced(op, name, value):
    """The valid arguments with one replaced."""
    case = valid(op)
    if "." in name:
        mean, cov = case["state"]
        value = (value, cov) if name == "state.mean" else (mean, value)
    return case | {name.split(".")[0]: value}


def like(op, name, shape=None, dtype=None):
    """Ones (zeros for a decay) of the argument's dtype, or of another shape or dtype."""
    value = valid(op)[name.split(".")[0]]
    value = value if "." not in name else value[name == "state.cov"]
    fill = 0 if name == "log_decay" else 1
    return jnp.full(value.shape if shape is None else shape, fill, dtype or value.dtype)


def wrong_shapes():
    """(op, argument, wrong shape): a rank too low and too high, and each axis one too long."""
    for op in ("kalman_memory", *MEMORIES):
        for name, allowed in shapes(op).items():
            first = allowed[-1] if name == "prior_var" else allowed[0]
            tried = [(*first, 7, 7), first[1:], first[:-1]]
            tried += [(*first[:i], first[i] + 1, *first[i + 1 :]) for i in range(len(first))]
            for shape in tried:
                # The sizes of k are the measure of the others, and v's last two are free.
                free = name == "k" and len(shape) == 4 or name == "v" and shape[:2] == (B, T)
                if shape not in allowed and not (free and len(shape) == 4):
                    yield op, name, shape


def message(name, found, *wanted):
    """A pattern of the message: argument, shape or dtype found, and what was wanted."""
    return f"^{re.escape(name)}: found .*{re.escape(found)}.*, wanted .*" + ".*".join(wanted)


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
def test_wrong_shapes(run):
    for op, name, shape in wrong_shapes():
        case = replaced(op, name, like(op, name, shape))
        axes = [] if name == "prior_var" else ["B"]
        with pytest.raises(ValueError, match=message(name, f"shape {shape}", *axes)):
            run(op, case)


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("op", ("kalman_memory", *MEMORIES))
def test_sizes_of_keys_are_the_measure_of_the_others(op, run):
    for shape in ((B + 1, T, HK, D), (B, T + 1, HK, D), (B, T, HK + 1, D), (B, T, HK, D + 1)):
        wanted = re.escape(f"[B={shape[0]}, T={shape[1]}, Hk={shape[2]}, D={shape[3]}]")
        with pytest.raises(ValueError, match=message("q", f"shape {(B, T, HK, D)}", wanted)):
            run(op, replaced(op, "k", like(op, "k", shape)))


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("op", FUNCTIONS)
def test_wrong_dtypes(op, run):
    for name in shapes(op):
        bad = ("float32", "bool") if name == "segment_ids" else ("int32", "bool", "complex64")
        for dtype in bad:
            case = replaced(op, name, like(op, name, dtype=dtype))
            with pytest.raises(ValueError, match=message(name, f"dtype {dtype}", "dtype")):
                run(op, case)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_every_allowed_shape_is_taken(op):
    for name, allowed in shapes(op).items():
        for shape in allowed:
            case = replaced(op, name, like(op, name, shape))
            if op in KALMAN and name == "log_decay" and len(shape) == 4:
                del case["angle"]
            if op in KALMAN and name == "obs_var" and len(shape) == 3:
                del case["state"]
            jax.eval_shape(functools.partial(call, op), case)


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("op", FUNCTIONS)
def test_value_heads_not_a_multiple_of_key_heads(op, run):
    case = replaced(op, "v", like(op, "v", (B, T, 3, M)))
    with pytest.raises(ValueError, match=r"^v: found 3 heads, wanted a multiple of the 2 heads"):
        run(op, case)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_axes_of_no_size(op):
    case = valid(op) | {"q": jnp.ones((B, T, HK, 0)), "k": jnp.ones((B, T, HK, 0))}
    with pytest.raises(ValueError, match="k.*found D=0, wanted at least 1"):
        call(op, case)


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("op", KALMAN)
def test_rotations_need_pairs_and_groups_a_divisor(op, run):
    case = valid(op) | {name: jnp.ones((B, T, HK, 5)) for name in ("q", "k")}
    with pytest.raises(ValueError, match=r"^angle: found key dim D=5, wanted an even one"):
        run(op, case | {"state": None})
    case = replaced(op, "obs_var", jnp.ones((B, T, H, 4)))
    with pytest.raises(ValueError, match=r"^obs_var: found G=4 groups, wanted a divisor.*M=6"):
        run(op, case)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_missing_gates(op):
    for name in ("process_var", "obs_var", "prior_var") if op in KALMAN else ("beta",):
        if op == "linear_attention":
            continue
        with pytest.raises(ValueError, match=f"{name}.*: found None, wanted"):
            call(op, valid(op) | {name: None})


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("op", FUNCTIONS)
def test_chunk_size(op, run):
    for found in (0, -3, 2.0, True, "64", None):
        pattern = f"^chunk_size: found {re.escape(repr(found))}, wanted an integer >= 1"
        with pytest.raises(ValueError, match=pattern):
            run(op, valid(op) | {"chunk_size": found})


@pytest.mark.parametrize("run", (call, call_in_jit), ids=("eager", "jit"))
@pytest.mark.parametrize("op", FUNCTIONS)
def test_unknown_implementation_lists_what_exists(op, run):
    case = valid(op) | {"implementation": "cuda"}
    forms = ["recurrent", "chunked", *["associative"] * (op in KALMAN), "pallas", "triton"]
    pattern = "^implementation: found 'cuda', wanted 'auto' or one of "
    with pytest.raises(ValueError, match=pattern + ", ".join(map(repr, forms))):
        run(op, case)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_unknown_implementation_is_an_error_without_tokens_too(op):
    per_token = {name: x for name, x in valid(op).items() if name not in ("state", "prior_var")}
    empty = {name: x[:, :0] for name, x in per_token.items() if hasattr(x, "shape")}
    assert call(op, empty)[0].shape[1] == 0
    with pytest.raises(ValueError, match="^implementation: found 'cuda'"):
        call(op, empty | {"implementation": "cuda"})


@pytest.mark.parametrize("op", FUNCTIONS)
def test_a_state_of_another_kind_is_named(op):
    array = jnp.zeros((B, H, D, M))
    wrong = array if op in KALMAN else ops.KalmanState(array, array)
    with pytest.raises(ValueError, match="^state: found a .*, wanted"):
        call(op, valid(op) | {"state": wrong})


# (argument, value that no op may take, what is wanted)
VALUES = (
    ("log_decay", 176.0, "log_decay <= 0"),
    ("log_decay", 1e-6, "log_decay <= 0"),
    ("log_decay", np.nan, "log_decay <= 0"),
    ("process_var", -1e-6, "process_var >= 0"),
    ("process_var", np.nan, "process_var >= 0"),
    ("obs_var", 0.0, "obs_var > 0"),
    ("obs_var", -1.0, "obs_var > 0"),
    ("obs_var", np.nan, "obs_var > 0"),
    ("prior_var", 0.0, "prior_var > 0"),
    ("prior_var", np.nan, "prior_var > 0"),
)


def illegal():
    """(op, argument, value, wish) for each argument that the op has."""
    for op in ("kalman_memory", *MEMORIES):
        yield from ((op, *row) for row in VALUES if op in KALMAN or row[0] == "log_decay")


ILLEGAL = tuple(illegal())


def poisoned(op, name, value):
    """Valid arguments, with a value put in the last element of one, at a real token."""
    case = valid(op) | {"segment_ids": jnp.zeros((B, T), jnp.int32)}
    return case | {name: case[name].at[(-1,) * case[name].ndim].set(value)}


@pytest.mark.parametrize("op,name,value,wanted", ILLEGAL)
def test_illegal_values_raise_at_once(op, name, value, wanted):
    with pytest.raises(
        ValueError, match=rf"^{name}: found .* at \(.*\) \(1 of .*, wanted {wanted}"
    ):
        call(op, poisoned(op, name, value))


@pytest.mark.parametrize("op,name,value,wanted", ILLEGAL)
def test_illegal_values_inside_jit_raise_only_under_debug_checks(op, name, value, wanted):
    case = poisoned(op, name, value)
    jax.block_until_ready(call_in_jit(op, case))
    with ops.debug_checks(), pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        jax.block_until_ready(call_in_jit(op, case))
        jax.effects_barrier()
    assert re.search(rf"{name}: found .*, wanted {wanted}", str(caught.value))


@pytest.mark.parametrize("op", FUNCTIONS)
def test_debug_checks_pass_legal_values_and_end_with_their_block(op):
    with ops.debug_checks():
        jax.block_until_ready(call_in_jit(op, valid(op)))
        jax.effects_barrier()
        with ops.debug_checks(False):
            jax.block_until_ready(call_in_jit(op, poisoned(op, "log_decay", 1.0)))
            jax.effects_barrier()
    jax.block_until_ready(call_in_jit(op, poisoned(op, "log_decay", 1.0)))
    jax.effects_barrier()
