"""The train step and the evaluation step: pure functions of a state and a batch, jitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bayesmem.train.losses import Batch, at_least_one
from bayesmem.train.objective import Objective
from bayesmem.train.sharding import BATCH_AXES, parameter_shardings
from bayesmem.train.trained_part import Trains, merge, split

PyTree = Any
Metrics = dict[str, jax.Array]


class TrainState(NamedTuple):
    """Everything a step reads and writes."""

    step: jax.Array  # int32 []: batches consumed, skipped ones included
    params: PyTree
    opt_state: optax.OptState
    rng: jax.Array  # typed key []; split once a step
    skipped: jax.Array  # int32 []: steps left out because of non-finite values


def create_state(
    model: nn.Module, optimizer: optax.GradientTransformation, seed: int, mesh: Mesh
) -> tuple[TrainState, PyTree]:
    """Initialises parameters and optimizer in place on the mesh.

    The values depend on the seed alone, not on the mesh.

    Args:
      model: a language model.
      optimizer: from `make_optimizer`.
      seed: of the parameters and of the state's key.
      mesh: from `make_mesh`.

    Returns:
      The unboxed state, and its shardings as a tree in the same structure.
    """

    def init(key: jax.Array, given: PyTree) -> PyTree:
        del given
        return model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    return start_state(init, optimizer, seed, mesh)


def start_state(
    init: Callable[[jax.Array, PyTree], PyTree],
    optimizer: optax.GradientTransformation,
    seed: int,
    mesh: Mesh,
    *,
    trains: Trains | None = None,
    given: PyTree = (),
) -> tuple[TrainState, PyTree]:
    """As `create_state`, with parameters of any origin.

    Args:
      init: (key, given) -> parameters, boxed with their logical axis names.
      optimizer: from `make_optimizer`.
      seed: of the parameters and of the state's key.
      mesh: from `make_mesh`.
      trains: which parameters are trained; the optimizer has a state for these alone. None: all.
      given: arrays that the parameters are made from.
    """

    def boxed(key: jax.Array, given: PyTree) -> TrainState:
        init_key, run_key = jax.random.split(key)
        params = init(init_key, given)
        opt_state = optimizer.init(split(params, trains)[0])
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, params, opt_state, run_key, zero)

    key = jax.random.key(seed)
    shardings = parameter_shardings(mesh, jax.eval_shape(boxed, key, given))
    create = jax.jit(lambda *start: nn.meta.unbox(boxed(*start)), out_shardings=shardings)
    return create(key, given), shardings


def abstract_params(model: nn.Module, mesh: Mesh) -> PyTree:
    """Shapes, types and placement of a model's parameters, as a restore target."""
    boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        nn.meta.unbox(boxed["params"]),
        parameter_shardings(mesh, boxed["params"]),
    )


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    shardings: PyTree,
    *,
    grad_accumulation: int = 1,
    trains: Trains | None = None,
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Builds the jitted step; it donates the state it is given.

    The loss is the mean over the counted targets of the whole batch, whatever the number of
    microbatches and devices. A step whose loss or gradient norm is not finite leaves parameters
    and optimizer as they were and is counted in `skipped`.

    Args:
      objective: what is descended and reported.
      optimizer: from `make_optimizer`.
      schedule: from `make_schedule`, for the metric only.
      shardings: second result of `create_state`.
      grad_accumulation: microbatches run one after the other; must divide the batch.
      trains: which parameters are trained, as in `start_state`. None: all.

    Returns:
      `step(state, batch, given=()) -> (state, metrics)`, `given` for the objective, metrics
      float32 []: the objective's means, `grad_norm` (before clipping), `lr`, and `skipped` (steps
      left out so far).
    """

    def step(state: TrainState, batch: Batch, given: PyTree = ()) -> tuple[TrainState, Metrics]:
        rng, key = jax.random.split(state.rng)
        micro = _microbatches(batch, grad_accumulation, shardings.step.mesh)
        part, rest = split(state.params, trains)

        def descend(part: PyTree, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
            return objective.descend(merge(part, rest), batch, key, given)

        sums, grads = _summed_gradients(descend, part, micro, key)
        metrics, count = objective.means(sums), at_least_one(sums.counted)
        grads = jax.tree.map(lambda g: g / count.astype(g.dtype), grads)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(norm)
        part, opt_state = update_if(finite, optimizer, grads, (part, state.opt_state))
        skipped = state.skipped + (1 - finite.astype(jnp.int32))
        metrics |= {"grad_norm": norm, "lr": schedule(state.step - state.skipped)}
        metrics["skipped"] = skipped
        metrics = {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}
        return TrainState(state.step + 1, merge(part, rest), opt_state, rng, skipped), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))


def update_if(
    finite: jax.Array,
    optimizer: optax.GradientTransformation,
    grads: PyTree,
    given: tuple[PyTree, optax.OptState],
    rate: jax.Array | float = 1.0,
) -> tuple[PyTree, optax.OptState]:
    """Returns parameters and optimizer state after an update, or as they were.

    Args:
      finite: bool [], whether to update them.
      optimizer: from `make_optimizer`.
      grads: mean gradients.
      given: parameters and optimizer state.
      rate: factor of the update: the learning rate, where the optimizer's is 1.
    """
    params, opt_state = given
    updates, after = optimizer.update(grads, opt_state, params)
    stepped = optax.apply_updates(params, jax.tree.map(lambda u: rate * u, updates)), after
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), stepped, given)


def make_eval_step(objective: Objective) -> Callable[..., Any]:
    """Builds the jitted `(params, batch, given=()) -> sums` of a batch, without any update."""

    def measure(params: PyTree, batch: Batch, given: PyTree = ()) -> Any:
        return objective.measure(params, batch, given)

    return jax.jit(measure)


def _microbatches(batch: Batch, parts: int, mesh: Mesh) -> Batch:
    """Splits [B, ...] into [parts, B / parts, ...].

    Microbatch i takes rows i, i + parts, ...: each device then finds its rows on itself.
    """

    def split(array: jax.Array) -> jax.Array:
        if array.shape[0] % parts:
            raise ValueError(
                f"batch: found {array.shape[0]} rows; wanted a multiple of "
                f"train.grad_accumulation = {parts}"
            )
        stacked = jnp.swapaxes(array.reshape(-1, parts, *array.shape[1:]), 0, 1)
        others = (PartitionSpec.UNCONSTRAINED,) * (stacked.ndim - 2)
        rows = NamedSharding(mesh, PartitionSpec(None, BATCH_AXES, *others))
        return jax.lax.with_sharding_constraint(stacked, rows)

    return jax.tree.map(split, dict(batch))


def _summed_gradients(
    descend: Callable[[PyTree, Batch, jax.Array], tuple[jax.Array, Any]],
    part: PyTree,
    micro: Batch,
    key: jax.Array,
) -> tuple[Any, PyTree]:
    """Sums of the loss and its gradient over microbatches [A, B, ...], one after the other."""

    def add(carry: tuple[Any, PyTree], item: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        batch, index = item
        grads, sums = jax.grad(descend, has_aux=True)(part, batch, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, carry, (sums, grads)), None

    first, parts = jax.tree.map(lambda x: x[0], micro), micro["inputs"].shape[0]
    _, shapes = jax.eval_shape(descend, part, first, key)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes, part))
    (sums, grads), _ = jax.lax.scan(add, zeros, (micro, jnp.arange(parts)))
    return sums, grads
