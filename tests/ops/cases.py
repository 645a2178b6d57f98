"""Random inputs of the ops: float64 NumPy, well-conditioned, seeded."""

import numpy as np

LENGTHS = (0, 1, 2, 15, 63, 64, 65, 127, 200)


def unit(rng, *shape):
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def qkv(rng, steps, *, batch=2, key_heads=2, heads=2, dim=4, value_dim=6):
    return {
        "q": rng.standard_normal((batch, steps, key_heads, dim)),
        "k": unit(rng, batch, steps, key_heads, dim),
        "v": rng.standard_normal((batch, steps, heads, value_dim)),
    }


def log_decay(rng, kind, k, heads, *, paired=False):
    """A decay for `kind` "identity", "scalar" or "diagonal"; sometimes strong, sometimes none."""
    if kind == "identity":
        return {}
    shape = (*k.shape[:2], heads) + (() if kind == "scalar" else k.shape[3:])
    values = -rng.exponential(0.3, shape) * rng.choice([0.0, 1.0, 30.0], shape, p=[0.1, 0.85, 0.05])
    if paired and kind == "diagonal":
        values[..., 1::2] = values[..., ::2]
    return {"log_decay": values}


def segments(rng, batch, steps):
    """Packed documents with boundaries anywhere, padding on the left, in between and right."""
    ids = np.sort(rng.integers(0, 5, (batch, steps)), axis=1)
    ids[0, : steps // 8] = -1
    ids[-1, steps // 2 : steps // 2 + 3] = -1
    ids[-1, steps - steps // 10 :] = -1
    return {"segment_ids": ids.astype(np.int32)}


def kalman(
    seed, steps, kind="identity", *, rotating=False, groups=1, packed=False, stateful=True, **sizes
):
    rng = np.random.default_rng(seed)
    case = qkv(rng, steps, **sizes)
    batch, _, heads, value_dim = case["v"].shape
    dim = case["k"].shape[3]
    case |= log_decay(rng, kind, case["k"], heads, paired=rotating)
    case["process_var"] = rng.uniform(0.0, 0.3, (batch, steps, heads))
    case["obs_var"] = rng.uniform(0.05, 1.0, (batch, steps, heads, groups))
    case["prior_var"] = rng.uniform(0.5, 2.0, heads)
    if rotating:
        case["angle"] = rng.uniform(-3.0, 3.0, (batch, steps, heads, dim // 2))
    if packed:
        case |= segments(rng, batch, steps)
    if stateful:
        root = rng.standard_normal((batch, heads, groups, dim, dim))
        cov = root @ np.swapaxes(root, -1, -2) / dim + 0.1 * np.eye(dim)
        case["state"] = (rng.standard_normal((batch, heads, dim, value_dim)), cov)
    return case


def memory(seed, steps, strength, kind="identity", *, packed=False, stateful=True, **sizes):
    """A case of `delta_rule` (strength "beta") or `linear_attention` (strength "gain")."""
    rng = np.random.default_rng(seed)
    case = qkv(rng, steps, **sizes)
    batch, _, heads, value_dim = case["v"].shape
    case |= log_decay(rng, kind, case["k"], heads)
    case[strength] = rng.uniform(0.0, 1.0, (batch, steps, heads))
    if packed:
        case |= segments(rng, batch, steps)
    if stateful:
        case["state"] = rng.standard_normal((batch, heads, case["k"].shape[3], value_dim))
    return case


def slots(
    seed, steps, *, packed=False, stateful=True, batch=2, heads=2, num_slots=16, k=4, value_dim=3
):
    """A case of `slot_memory`: few slots, written often; weights and forgetting of all sizes."""
    rng = np.random.default_rng(seed)
    lead = (batch, steps, heads)
    case = {"v": rng.standard_normal((*lead, value_dim)), "forget": 3 * rng.standard_normal(lead)}
    for name, count in (("write", k), ("read", min(k + 1, num_slots))):
        order = np.argsort(rng.random((*lead, num_slots)), axis=-1)
        case[f"{name}_ids"] = order[..., :count].astype(np.int32)
        case[f"{name}_weights"] = rng.uniform(0.0, 1.0, (*lead, count)) ** 2
    if packed:
        case |= segments(rng, batch, steps)
    if stateful:
        content = rng.standard_normal((batch, heads, num_slots, value_dim))
        case["state"] = content, rng.uniform(0.01, 2.0, (batch, heads, num_slots))
    return case


def cut(case, start, stop, state=None):
    """The tokens from `start` to `stop` of a case, continuing from `state`."""
    whole = ("prior_var", "state")
    part = {name: x if name in whole else x[:, start:stop] for name, x in case.items()}
    return part if state is None else part | {"state": state}
