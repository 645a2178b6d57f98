"""Run as a program with 8 host devices: trains on several meshes, restores on several; JSON out."""

import json
import logging
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.train.checkpoint import abstract_state, restore_newest, save_checkpoint
from bayesmem.train.objective import next_token
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.settings import MeshSettings, OptimizerSettings
from bayesmem.train.sharding import make_mesh, put_batch
from bayesmem.train.step import TrainState, create_state, make_train_step
from tests.train.toys import ToyModel, batch_at

SETTINGS = OptimizerSettings(learning_rate=0.05, warmup_steps=1, weight_decay=0.1)
DATA_ONLY = MeshSettings(data=8)
MESHES = {
    "one": MeshSettings(data=1),
    "fsdp=8": MeshSettings(data=1, fsdp=8),
    "data=2,fsdp=4": MeshSettings(data=2, fsdp=4),
    "data=2,tensor=2,sequence=2": MeshSettings(data=2, tensor=2, sequence=2),
}
LANGUAGE_MODEL_MESHES = {
    "one": MESHES["one"],
    "data=8": DATA_ONLY,
    "fsdp=8": MESHES["fsdp=8"],
    "data=2,fsdp=4": MESHES["data=2,fsdp=4"],
}


def language_model():
    """A hybrid of two mixers and packed batches for it."""
    options = {"num_heads": 2, "chunk_size": 8}
    config = ModelConfig(
        vocab_size=11,
        width=16,
        mixers=("bayesian", "attention"),
        mixer_options={"bayesian": options, "attention": {"num_heads": 2}},
        mlp_width=16,
        max_length=12,
        vocab_multiple=8,
    )

    def batch(position):
        segments = np.cumsum(np.arange(12) == position + 4).astype(np.int32)
        segments = np.tile(segments, (16, 1))
        return batch_at(position, rows=16, length=12) | {"segment_ids": segments}

    return LanguageModel(config), batch


def train_language_model(settings):
    """Losses of three steps of the language model."""
    model, batches = language_model()
    return train(settings, model=model, batches=batches, steps=3)["losses"]


def toy_batch(position):
    """16 rows for the toy model."""
    return batch_at(position, rows=16)


def train(settings, model=None, batches=toy_batch, steps=5, grad_accumulation=1):
    """Losses of some steps, and how the parameters lie on the mesh."""
    devices = jax.devices()[:1] if settings == MESHES["one"] else jax.devices()
    mesh, model = make_mesh(settings, devices), model or ToyModel()
    optimizer, rate = make_optimizer(SETTINGS, 20), make_schedule(SETTINGS, 20)
    state, shardings = create_state(model, optimizer, 0, mesh)
    step = make_train_step(
        next_token(model), optimizer, rate, shardings, grad_accumulation=grad_accumulation
    )
    losses = []
    for position in range(steps):
        state, metrics = step(state, put_batch(mesh, batches(position)))
        losses.append(float(metrics["loss"]))
    if "embedding" in state.params and isinstance(state.params["embedding"], dict):
        return {"losses": losses}
    moments = jax.tree.leaves(state.opt_state, is_leaf=lambda x: isinstance(x, dict))
    mu = next(node for node in moments if isinstance(node, dict))
    return {
        "losses": losses,
        "specs": {name: str(leaf.sharding.spec) for name, leaf in state.params.items()},
        "shard": state.params["embedding"].sharding.shard_shape((11, 8)),
        "moment_shard": mu["embedding"].sharding.shard_shape((11, 8)),
    }


def case_c11_state(count, spec):
    """A state with one (24, 1) leaf and Adam moments, on `count` devices."""
    mesh = make_mesh(MeshSettings(data=1, fsdp=count), jax.devices()[:count])
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, spec)
    values = np.random.default_rng(0).normal(size=(3, 24, 1)).astype(np.float32)
    adam = optax.ScaleByAdamState(
        jnp.int32(7), {"w": jnp.asarray(values[1])}, {"w": jnp.asarray(values[2])}
    )
    state = TrainState(
        jnp.int32(3), {"w": jnp.asarray(values[0])}, adam, jax.random.key(5), jnp.int32(1)
    )
    place = {(24, 1): split}
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place.get(x.shape, everywhere)),
        state,
    )
    return state, target


def case_c11(directory):
    """Saves on 4 devices; what restoring on 1, 2, 8 and 5 gives."""
    state, target = case_c11_state(4, PartitionSpec("fsdp"))
    placed = jax.tree.map(lambda x, to: jax.device_put(x, to.sharding), state, target)
    save_checkpoint(directory, placed, {"position": 3})
    plain = jax.tree.leaves(state._replace(rng=jax.random.key_data(state.rng)))
    results = {}
    for count, spec in ((1, "fsdp"), (2, "fsdp"), (8, "fsdp"), (5, "fsdp"), (5, None)):
        _, target = case_c11_state(count, PartitionSpec(spec))
        try:
            restored = restore_newest(directory, target).state
        except ValueError as error:
            results[f"{count} {spec}"] = str(error)
            continue
        leaves = jax.tree.leaves(restored._replace(rng=jax.random.key_data(restored.rng)))
        equal = all(np.array_equal(x, y) for x, y in zip(leaves, plain, strict=True))
        results[f"{count} {spec}"] = [equal, len(restored.params["w"].sharding.device_set)]
    return results


def restored_on_other_mesh(directory):
    """Whether a toy state saved on fsdp=8 continues on data=8 and on one device bit for bit."""
    optimizer, equal = make_optimizer(SETTINGS, 20), []
    state, _ = create_state(ToyModel(), optimizer, 3, make_mesh(MESHES["fsdp=8"]))
    save_checkpoint(directory, state, {})
    for settings, count in ((DATA_ONLY, 8), (MESHES["one"], 1)):
        mesh = make_mesh(settings, jax.devices()[:count])
        other, _ = create_state(ToyModel(), optimizer, 4, mesh)
        found = restore_newest(directory, abstract_state(other)).state
        pairs = zip(jax.tree.leaves(found.params), jax.tree.leaves(state.params), strict=True)
        equal.append(all(np.array_equal(x, y) for x, y in pairs))
    return equal


def main(directory):
    """Prints all results as one line of JSON."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    results = {name: train(settings) for name, settings in MESHES.items()}
    results["data=8, accumulated"] = train(DATA_ONLY, grad_accumulation=2)
    results["language model"] = {
        name: train_language_model(settings) for name, settings in LANGUAGE_MODEL_MESHES.items()
    }
    results["c11"] = case_c11(directory / "c11")
    results["restored"] = restored_on_other_mesh(directory / "toy")
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
