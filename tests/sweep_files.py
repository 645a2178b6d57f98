"""Small made-up files of sweeps, in the form in which `launch.sweep` leaves them."""

import json

from configs.sweeps import collision, mqar, random_keys

PROVENANCE = {
    "device": "some device",
    "versions": {"jax": "1.2.3"},
    "commit": "0123456789abcdef+",
    "seconds": 60.0,
}


def config_of(task, variant="update,64x4", **grid):
    """The shipped config of a task as JSON has it, with other values in its section `sweep`."""
    make = {
        "collision": collision.get_config,
        "random_keys": random_keys.get_config,
        "mqar": lambda: mqar.get_config(variant),
    }[task]
    config = json.loads(json.dumps(make().to_dict()))
    config["sweep"] |= grid
    return config


def run_of(config, accuracy, *, rate=None, seed=0, last=None):
    """A run. `accuracy` is that of every test, or test to (accuracy, loss, margin)."""
    names = ["test", *config["tests"]]
    values = accuracy if isinstance(accuracy, dict) else {}
    tests = {}
    for number, name in enumerate(names):
        plain = (accuracy, 0.1 + number, None) if not values else (0.5, 1.0, None)
        found = values.get(name, plain)
        tests[name] = dict(zip(("accuracy", "loss", "margin"), found, strict=True))
        tests[name]["queries"] = 1280
    end = tests["test"]["accuracy"] if last is None else last
    return {
        "learning_rate": config["sweep"]["learning_rates"][0] if rate is None else rate,
        "seed": seed,
        "skipped": 0,
        "tests": tests,
        "curve": {"step": [50, 100], "loss": [1.0, 0.5], "accuracy": [0.1, end]},
    }


def result_of(config, mixer, runs, width=64):
    """The result of runs of one mixer and width."""
    return {
        "task": config["data"]["task"],
        "mixer": mixer,
        "width": width,
        "steps": config["train"]["steps"],
        "batch_size": config["train"]["batch_size"],
        "parameters": 12345,
        "runs": runs,
        **PROVENANCE,
    }


def sweep_of(config, *results):
    """The contents of a file."""
    return {"config": config, "results": list(results)}


def collision_sweep(bayesian=(0.99, 0.98, 0.97), others=0.6):
    """A learned collision: accuracies trained on, at 256 flood writes and at high overlap."""
    config = config_of("collision")
    results = []
    for mixer in config["sweep"]["mixers"]:
        trained, flood, overlap = bayesian if mixer == "bayesian" else (0.9, others, others)
        runs = []
        for seed in (0, 1, 2):
            off = 0.01 * (seed - 1)
            tests = {name: (trained + off, 0.2, 0.5) for name in ("test", *config["tests"])}
            tests["flood_256"] = (flood + off, 0.3, 0.4)
            tests["overlap_high"] = (overlap + off, 0.3, -0.2)
            runs.append(run_of(config, tests, seed=seed))
        results.append(result_of(config, mixer, runs))
    return sweep_of(config, *results)


def random_keys_sweep(losses, mixers=None):
    """Random keys: mixer to its cross-entropy at 96, 128, 192 and 256 keys; None where failed.

    `mixers` are those that there are, without it those that have losses.
    """
    config = config_of("random_keys")
    config["model"]["mixer_options"] = {name: {} for name in mixers or losses}
    names = ("keys_96", "keys_128", "keys_192", "keys_256")
    results = []
    for mixer, found in losses.items():
        tests = {name: (0.5, loss, None) for name, loss in zip(names, found, strict=True)}
        runs = [run_of(config, tests, seed=seed) for seed in (0, 1, 2)]
        results.append(result_of(config, mixer, runs))
    return sweep_of(config, *results)


def mqar_of(variant, accuracies, seeds=(0, 1)):
    """MQAR: (mixer, width) to its accuracy on every test."""
    config = config_of("mqar", variant, seeds=list(seeds))
    results = [
        result_of(config, mixer, [run_of(config, x, seed=seed) for seed in seeds], width)
        for (mixer, width), x in accuracies.items()
    ]
    return sweep_of(config, *results)


def write(path, contents):
    """Writes a file; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(contents))
    return path
