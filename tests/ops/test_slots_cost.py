"""Memory and cost of the slot memory, from what the compiler says of its programs."""

import jax
import jax.numpy as jnp
import pytest

from bayesmem import ops
from tests.ops import slot_memories


def arguments(steps, k, num_slots, value_dim, heads=1):
    """Shapes of a case without its numbers."""
    shape = (1, steps, heads)

    def floats(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    case = {"v": floats(*shape, value_dim), "forget": floats(*shape)}
    for name in ("write", "read"):
        case[f"{name}_ids"] = jax.ShapeDtypeStruct((*shape, k), jnp.int32)
        case[f"{name}_weights"] = floats(*shape, k)
    slots = (1, heads, num_slots)
    return case | {"state": (floats(*slots, value_dim), floats(*slots))}


def temporaries(case, form, num_slots, backward):
    """Bytes of temporaries of the compiled program."""
    varied = {name: x for name, x in case.items() if name not in slot_memories.INTEGERS}
    fixed = {name: x for name, x in case.items() if name in slot_memories.INTEGERS}

    def loss(varied, fixed):
        return jnp.sum(slot_memories.call(varied | fixed, form, num_slots)[0])

    function = jax.grad(loss) if backward else loss
    program = jax.jit(function).lower(varied, fixed).compile()
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("backward", (False, True))
@pytest.mark.parametrize("form", ("touched", "segmented"))
def test_memory_is_a_few_rows_a_write(form, backward):
    """T x K = 4,096 x 32 at M = 32: a row of M floats is 16.8 MB for all writes of a head."""
    steps, k, num_slots, value_dim = 4096, 32, 1024, 32
    rows = 4 * (steps * k + num_slots) * value_dim
    found = temporaries(arguments(steps, k, num_slots, value_dim), form, num_slots, backward)
    assert found < rows * {"touched": 3, "segmented": 9}[form]


def test_a_step_of_decoding_copies_no_state():
    """With a donated state, temporaries of one token do not grow with S, and nothing is copied."""
    sizes = []
    for num_slots in (256, 4096):
        case = arguments(1, 8, num_slots, 32, heads=4)

        def step(state, case, num_slots=num_slots):
            o, *state = slot_memories.call(case | {"state": state}, "auto", num_slots)
            return o, ops.SlotState(*state)

        state = ops.SlotState(*case.pop("state"))
        case["segment_ids"] = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        program = jax.jit(step, donate_argnums=0).lower(state, case).compile()
        sizes.append(program.memory_analysis().temp_size_in_bytes)
        wide = f"f32[1,4,{num_slots},32]"
        copies = [x for x in program.as_text().splitlines() if " copy(" in x and wide in x]
        assert not copies, copies
    assert sizes[0] == sizes[1] < 4 * 4 * 256 * 32
