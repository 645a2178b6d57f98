"""Run as a program with 8 host devices: both ops cut among them, without kernels; JSON out.

`Config(kernel=False)` runs what the kernels do in plain JAX, behind the same partitioning.
"""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.ops.delta import api as delta_api
from bayesmem.ops.delta.types import DeltaInputs
from bayesmem.ops.kalman import api as kalman_api
from bayesmem.ops.kalman.types import KalmanInputs
from bayesmem.train.settings import MeshSettings
from kernels_pallas import partition
from kernels_pallas.delta_chunk import bwd as delta_bwd
from kernels_pallas.delta_chunk import op as delta_op
from kernels_pallas.kalman_chunk import algebra
from kernels_pallas.kalman_chunk import bwd as kalman_bwd
from kernels_pallas.kalman_chunk import op as kalman_op
from kernels_pallas.kalman_chunk.config import Config
from tests.tolerances import assert_close
from tests.train import mesh_worker
from tests.train.toys import batch_at

PLAIN = Config(length=8, kernel=False)
STEPS, DIM, WIDTH, GROUPS = 20, 6, 5, 2
SIZES = {"data": 2, "fsdp": 2, "tensor": 2}
ROWS = ("data", "fsdp")
COLLECTIVE = r" (all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)(?:-start)?\("

# Sequences, heads, and the mesh axes that arguments have them on.
LAYOUTS = {
    "both": (8, 4, ROWS, "tensor"),
    "sequences": (8, 3, ("data", "fsdp", "tensor"), None),
    "heads": (3, 4, None, ("tensor", "data")),
    "neither": (3, 3, ROWS, "tensor"),
    "some": (6, 4, ROWS, "tensor"),
}
PARTS: set[tuple[int, ...]] = set()
"""Sequences and heads of the memories that ran."""


def kalman(batch, heads, dim=DIM):
    """Arguments of a call of the Kalman recurrence."""
    rng = np.random.default_rng(0)
    lead, state = (batch, STEPS, heads), (batch, heads, GROUPS, dim)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    def positive(*shape):
        return 0.3 + jnp.abs(normal(*shape))

    return KalmanInputs(
        q=normal(*lead, dim), k=normal(*lead, dim), v=normal(*lead, GROUPS, WIDTH),
        log_decay=-positive(*lead, 1), angle=None, process_var=positive(*lead),
        obs_var=positive(*lead, GROUPS), prior_var=positive(heads),
        starts=jnp.asarray(rng.random(lead[:2]) < 0.1), mean=normal(*state, WIDTH),
        cov=jnp.broadcast_to(jnp.eye(dim), (*state, dim)) * positive(batch, heads, 1, 1, 1),
    )  # fmt: skip


def delta(batch, heads, dim=DIM):
    """Arguments of a call of the delta rule."""
    rest = kalman(batch, heads, dim)
    unit = rest.k / jnp.linalg.norm(rest.k, axis=-1, keepdims=True)
    strength = jax.nn.sigmoid(rest.process_var)
    return DeltaInputs(
        rest.q, unit, rest.v[:, :, :, 0], strength, rest.log_decay, rest.starts, rest.mean[:, :, 0]
    )


OPS = {
    "kalman": (kalman, lambda x: kalman_op.filter_tokens(x, PLAIN)),
    "kalman, reads only": (kalman, lambda x: kalman_op.filter_tokens(x, PLAIN).y),
    "delta": (delta, lambda x: delta_op.run_tokens(x, PLAIN)),
}


def gradients(run, inputs):
    """Results of an op, and the gradients of a loss of all of them."""
    starts, numbers = inputs.starts, inputs._replace(starts=None)

    def loss(numbers):
        found = run(numbers._replace(starts=starts))
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(found)), found

    return jax.value_and_grad(loss, has_aux=True)(numbers)


def make_mesh(axis_type=AxisType.Auto):
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(axis_type,) * len(SIZES))


def specs(inputs, rows, heads):
    """Where each argument has its sequences and heads."""
    places = {name: PartitionSpec(rows, None, heads) for name in inputs._fields}
    places |= {"prior_var": PartitionSpec(heads), "starts": PartitionSpec(rows)}
    places |= dict.fromkeys(("mean", "cov", "memory"), PartitionSpec(rows, heads))
    return type(inputs)(**{n: places[n] if getattr(inputs, n) is not None else None
                           for n in inputs._fields})  # fmt: skip


def constrained(inputs, rows, heads, mesh):
    """Arguments cut along a mesh, also where that leaves parts of different sizes."""
    return jax.tree.map(
        lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
        inputs,
        specs(inputs, rows, heads),
    )


def differences(found, wanted):
    """What is wrong with arrays, or nothing."""
    try:
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            scale = max(float(jnp.abs(other).max()), 1.0)
            assert_close(one / scale, other / scale, jnp.float32, "gradient", STEPS)
    except AssertionError as error:
        return str(error)
    return ""


def in_layout(op, layout):
    """A call and its gradients under plain `jax.jit`: what is wrong, collectives, parts."""
    make, run = OPS[op]
    batch, heads, *places = LAYOUTS[layout]
    inputs, mesh = make(batch, heads), make_mesh()
    call = jax.jit(lambda x: gradients(run, constrained(x, *places, mesh)))
    even = layout not in ("neither", "some")
    if even:
        inputs = jax.device_put(inputs, jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), specs(inputs, *places)
        ))  # fmt: skip
    jax.clear_caches()
    PARTS.clear()
    compiled = call.lower(inputs).compile()
    parts = sorted(PARTS)
    alone = jax.device_put(inputs, jax.devices()[0])
    wanted = jax.jit(functools.partial(gradients, run))(alone)
    moves = re.findall(COLLECTIVE, compiled.as_text())
    wrong = differences(compiled(inputs) if even else call(inputs), wanted)
    return {"wrong": wrong, "parts": parts, "moves": sorted(set(moves))}


def around(op):
    """What is wrong with a call within JAX's transformations, on the mesh; of "delta", with all."""
    make, run = OPS[op]
    mesh = make_mesh()
    call = functools.partial(gradients, run)
    inputs = make(8, 4)
    stacked = jax.tree.map(lambda x: jnp.stack([x, jnp.roll(x, 1, 0)]), inputs)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), inputs.q), inputs
    places = specs(inputs, ROWS, "tensor")
    cut = jax.device_put(inputs, jax.tree.map(lambda spec: NamedSharding(mesh, spec), places))
    out = jax.tree.map(
        lambda x: PartitionSpec(ROWS, *((None, "tensor") if x.shape[1] == STEPS else ("tensor",))),
        jax.eval_shape(run, inputs),
    )
    wanted = jax.jit(call)(inputs)
    several = jax.jit(lambda x: jax.lax.map(call, x))(stacked)
    stacked = jax.tree.map(lambda x, like: jax.device_put(jnp.stack([like, jnp.roll(x[0], 1, 0)]),
        NamedSharding(mesh, PartitionSpec(None, *like.sharding.spec))), stacked, cut)  # fmt: skip
    (_, results), _ = wanted
    shared = jax.vmap(lambda q, x: run(x._replace(q=q)), in_axes=(0, None))
    found = {
        "vmap": (jax.jit(jax.vmap(call))(stacked), several),
        "vmap of one argument": (jax.jit(shared)(many[0], cut),
                                 jax.tree.map(lambda x: jnp.stack([x, x]), results)),
        "checkpoint": (jax.jit(lambda x: gradients(jax.checkpoint(run), x))(cut), wanted),
        "scan": (jax.jit(lambda x: jax.lax.map(call, x))(stacked), several),
        "no jit": (run(cut), results),
        "shard_map": (jax.jit(
            jax.shard_map(run, mesh=mesh, in_specs=(places,), out_specs=out)
        )(cut), results),
    }  # fmt: skip
    if op == "kalman":  # the rest is of what both ops share, and the other is half as long
        return {name: differences(*pair) for name, pair in found.items()}
    found["vmap of vmap of vmap"] = nested(run, inputs, cut)
    with jax.set_mesh(mesh):
        found["set_mesh, arguments nowhere yet"] = jax.jit(call)(inputs), wanted
        asked = jax.jit(lambda x: call(jax.tree.map(jax.lax.with_sharding_constraint, x, places)))
        found["set_mesh, constraints by axes"] = asked(inputs), wanted
    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        own = jax.sharding.auto_axes(run, out_sharding=out)
        found["auto_axes"] = jax.jit(own)(jax.device_put(inputs, places)), results
    return {name: differences(*pair) for name, pair in found.items()}


def nested(run, inputs, cut):
    """Three `jax.vmap`s, the outer two of one argument alone: found and wanted."""
    scales = jnp.arange(1.0, 13.0).reshape(2, 2, 3, *(1,) * inputs.q.ndim)
    queries, keys = inputs.q * scales, inputs.k / scales[0, 0]
    several = jax.vmap(lambda q, k, x: run(x._replace(q=q, k=k)), in_axes=(0, 0, None))
    for _ in range(2):
        several = jax.vmap(several, in_axes=(0, None, None))
    found = jax.jit(several)(queries, keys, cut)
    pairs = queries, jnp.broadcast_to(keys, queries.shape)
    pairs = jax.tree.map(lambda x: x.reshape(-1, *inputs.q.shape), pairs)
    wanted = jax.lax.map(lambda pair: run(inputs._replace(q=pair[0], k=pair[1])), pairs)
    return found, jax.tree.map(lambda x, like: x.reshape(like.shape), wanted, found)


def merged():
    """There and back by functions that have sequences, heads and groups in one axis in between."""
    lead, one = "B H", "(B H G)"
    there = partition.spread(lambda _: partition.Places(("B (H G)", lead), one), static=2)
    back = partition.spread(lambda _: partition.Places((one, lead), "B (H G)"), static=2)

    def flat(x, lead, option):
        PARTS.add(("flat", *lead.shape))
        return jax.lax.sort(x, dimension=2).reshape(-1, x.shape[2])

    def wide(x, lead, option):
        return jnp.cumsum(x, axis=1).reshape(lead.shape[0], -1, x.shape[1])

    def run(x, lead, there=there, back=back):
        return back(wide)(there(flat)(x, lead, "option"), lead, "option")

    x = jnp.asarray(np.random.default_rng(1).standard_normal((8, 4 * GROUPS, 3)), jnp.float32)
    place = NamedSharding(make_mesh(), PartitionSpec(ROWS, "tensor"))
    PARTS.clear()
    compiled = jax.jit(run).lower(*jax.device_put((x, x[:, :4, 0]), place)).compile()
    found = compiled(*jax.device_put((x, x[:, :4, 0]), place))
    wrong = differences(found, run(x, x[:, :4, 0], lambda f: f, lambda f: f))
    moves = sorted(set(re.findall(COLLECTIVE, compiled.as_text())))
    return {"wrong": wrong, "parts": sorted(PARTS), "moves": moves}


def remember(module, name, sizes):
    """Has a function of the algebra note the sequences and heads that it is given."""
    function = getattr(module, name)

    @functools.wraps(function)
    def call(*given, **options):
        PARTS.add((name, *sizes(*given)))
        return function(*given, **options)

    setattr(module, name, call)


def train(settings):
    """Losses of three steps of a language model of both ops, and the parts that ran."""
    options = {"num_heads": 2, "implementation": "pallas"}
    mixers = "bayesian", "gated_deltanet"
    model = LanguageModel(ModelConfig(
        vocab_size=11, width=16, mixers=mixers, mixer_options=dict.fromkeys(mixers, options),
        mlp_width=16, max_length=12, vocab_multiple=8,
    ))  # fmt: skip
    jax.clear_caches()
    PARTS.clear()
    batches = functools.partial(batch_at, rows=16, length=12)
    losses = mesh_worker.train(settings, model=model, batches=batches, steps=3)["losses"]
    return {"losses": losses, "parts": sorted(PARTS)}


def main():
    """Prints all results as one line of JSON."""
    remember(algebra, "mean_chain", lambda terms, factors, mean, *_: mean.shape[:2])
    for module in (kalman_bwd, delta_bwd):
        remember(module, "backward", lambda terms, *_: terms.entry.shape[1:3])
    results = {
        "layouts": {f"{op}, {layout}": in_layout(op, layout)
                    for op in ("kalman", "delta") for layout in LAYOUTS},
        "around": {op: around(op) for op in ("kalman", "delta")},
        "reads": in_layout("kalman, reads only", "both"),
        "merged": merged(),
    }  # fmt: skip
    kalman_api.FORMS["pallas"] = lambda x, *_, **__: kalman_op.filter_tokens(x, PLAIN)
    delta_api.FORMS["pallas"] = lambda x, *_, **__: delta_op.run_tokens(x, PLAIN)
    results["train"] = {
        "one": train(mesh_worker.MESHES["one"]), "eight": train(MeshSettings(**SIZES))
    }  # fmt: skip
    print(json.dumps(results))


if __name__ == "__main__":
    main()
