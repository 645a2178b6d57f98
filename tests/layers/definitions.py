"""Every layer written again in NumPy float64 from its docstring, on `tests.oracles`."""

import numpy as np

from tests import oracles


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(0, x)


def dense(params, x):
    return x @ params["kernel"] + params.get("bias", 0)


def unit(x):
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + 1e-6)


def rms_norm(params, x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * params["scale"]


def convolved(params, x, names):
    """Projections side by side, with the convolution where there is one."""
    joined = np.concatenate([dense(params[name], x) for name in names], axis=-1)
    if "conv" in params:
        kernel = params["conv"]["kernel"]
        history = np.pad(joined, ((0, 0), (len(kernel) - 1, 0), (0, 0)))
        joined = sum(tap * history[:, i : i + x.shape[1]] for i, tap in enumerate(kernel))
        joined = joined + params["conv"].get("bias", 0)
    return joined


def heads(params, x, layout, silu_after):
    """Queries, keys and values [B, T, heads, size]; "addresses" [B, T, size] are both."""
    if "addresses" in params:
        k = np.repeat(params["addresses"][:, :, None], layout.key_heads, axis=2)
        v = dense(params["value"], x).reshape(*x.shape[:2], layout.value_heads, -1)
        return k, k, silu(v) if silu_after else v
    joined = convolved(params, x, ("query", "key", "value"))
    if silu_after:
        joined = silu(joined)
    keys = layout.key_heads * layout.key_dim
    q, k, v = np.split(joined, [keys, 2 * keys], axis=-1)
    shape = (*x.shape[:2], layout.key_heads, layout.key_dim)
    q, k = (part.reshape(shape) + params.get("qk_bias", 0) for part in (q, k))
    return q, k, v.reshape(*x.shape[:2], layout.value_heads, -1)


def output(params, y, x, gate):
    """RMSNorm of each head, gate, projection."""
    y = rms_norm(params["norm"], y).reshape(*x.shape[:2], -1)
    if gate is not None:
        y = y * gate(dense(params["gate"], x))
    return dense(params["out"], y)


def grouped_output(params, y, x, groups):
    """Gate, RMSNorm of each group of heads if there is one, projection."""
    y = y.reshape(*x.shape[:2], -1) * silu(dense(params["gate"], x))
    if "norm" in params:
        parts, scales = np.split(y, groups, axis=-1), np.split(params["norm"]["scale"], groups)
        normed = [rms_norm({"scale": s}, part) for part, s in zip(parts, scales, strict=True)]
        y = np.concatenate(normed, axis=-1)
    return dense(params["out"], y)


def step_decay(params, x, channels=None):
    """Log decay and step size of Mamba-2 and Gated DeltaNet."""
    x = dense(params["down"], x) if "down" in params else x
    raw, rates = dense(params["step"], x), np.exp(params["A_log"])
    if channels:
        raw, rates = raw.reshape(*x.shape[:2], -1, channels), rates[:, None]
    step = softplus(raw + params["dt_bias"])
    return -rates * step, step


def turned(x, theta=10000.0):
    """Rotary embedding at positions 0 ... T - 1, one pair (i, i + D/2) at a time."""
    half, y = x.shape[-1] // 2, np.array(x)
    for i in range(half):
        angle = np.arange(x.shape[1])[:, None] * theta ** (-i / half)
        y[..., i] = np.cos(angle) * x[..., i] - np.sin(angle) * x[..., i + half]
        y[..., i + half] = np.sin(angle) * x[..., i] + np.cos(angle) * x[..., i + half]
    return y


def bayesian(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=False)
    q, k = unit(q), unit(k)
    process_var = softplus(dense(params["process_noise"]["gate"], x))
    obs_var = softplus(dense(params["observation_noise"]["gate"], x))
    obs_var = 1e-6 + obs_var.reshape(*x.shape[:2], layer.layout.value_heads, layer.num_groups)
    log_decay = angle = None
    if layer.transition != "identity":
        channels = layer.layout.key_dim if layer.transition == "diagonal" else None
        log_decay, _ = step_decay(params["decay"], x, channels)
    if layer.rotation:
        # Real rows are the even ones.
        wide = [np.zeros((*part.shape[:3], 2 * part.shape[3])) for part in (q, k)]
        wide[0][..., ::2], wide[1][..., ::2] = q, k
        (q, k), log_decay = wide, np.repeat(log_decay, 2, axis=-1)
        angle = np.einsum("btw,whp->bthp", x, params["rotation"]["kernel"])
        angle = angle + params["rotation"]["bias"]
    prior = layer.prior_var
    if layer.learn_prior:
        prior = softplus(params["prior"])
        # The floor stands in units of the prior.
        obs_var = 1e-6 * prior[:, None] + (obs_var - 1e-6)
    y, *_ = oracles.kalman(
        q, k, v, log_decay=log_decay, angle=angle, process_var=process_var, obs_var=obs_var,
        prior_var=prior,
    )  # fmt: skip
    return output(params["output"], y, x, silu)


def deltanet(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=True)
    beta = 2 * sigmoid(dense(params["beta"]["gate"], x))
    y, _ = oracles.delta(unit(q) * q.shape[-1] ** -0.5, unit(k), v, beta)
    return output(params["output"], y, x, silu if "gate" in params["output"] else None)


def gated_deltanet(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=True)
    beta = sigmoid(dense(params["beta"]["gate"], x))
    log_decay, _ = step_decay(params["decay"], x)
    y, _ = oracles.delta(unit(q) * q.shape[-1] ** -0.5, unit(k), v, beta, log_decay)
    return output(params["output"], y, x, silu)


def kda(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=True)
    beta = sigmoid(dense(params["beta"]["gate"], x))
    log_decay, _ = step_decay(params["decay"], x, q.shape[-1])
    y, _ = oracles.delta(unit(q) * q.shape[-1] ** -0.5, unit(k), v, beta, log_decay)
    return output(params["output"], y, x, sigmoid)


def linear_attention(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=False)
    q, k = (np.where(part > 0, part, np.expm1(part)) + 1 for part in (q, k))
    y, _ = oracles.additive(q * q.shape[-1] ** -0.5, k, v)
    return output(params["output"], y, x, silu)


def retnet(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=False)
    log_decay = np.broadcast_to(np.log([1 - 1 / 32, 1 - 1 / 64]), v.shape[:3])
    y, _ = oracles.additive(turned(q) * q.shape[-1] ** -0.5, turned(k), v, log_decay=log_decay)
    return output(params["output"], y, x, silu)


def gla(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=False)
    raw = dense(params["decay"]["up"], dense(params["decay"]["down"], x)).reshape(q.shape)
    log_decay = np.log(sigmoid(raw) ** (1 / 16))
    y, _ = oracles.additive(q * q.shape[-1] ** -0.5, k, v, log_decay=log_decay)
    return output(params["output"], y, x, silu)


def gsa(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=False)
    raw = dense(params["decay"]["up"], dense(params["decay"]["down"], x))
    log_decay = np.log(sigmoid(raw) ** (1 / 16)).reshape(*v.shape[:3], -1)
    y, *_ = oracles.gated_slots(silu(q) * q.shape[-1] ** -0.5, silu(k), v, log_decay)
    return output(params["output"], y, x, silu)


def mamba2(layer, params, x):
    q, k, v = heads(params["heads"], x, layer.layout, silu_after=True)
    log_decay, step = step_decay(params["decay"], x)
    y, _ = oracles.additive(q, k, v, gain=step, log_decay=log_decay)
    y = y + params["skip"][:, None] * v
    if layer.options.output_norm != "heads":
        return grouped_output(params["output"], y, x, layer.num_groups)
    return output(params["output"], y, x, silu)


def attention(layer, params, x):
    layout, (batch, steps, _) = layer.layout, x.shape
    q, k, v = (
        dense(params[name], x).reshape(batch, steps, -1, layout.key_dim)
        for name in ("query", "key", "value")
    )
    q, k = turned(q), turned(k)
    y = np.zeros_like(q)
    for head in range(layer.num_heads):
        source = head * layout.key_heads // layer.num_heads
        for t in range(steps):
            scores = np.einsum("bd,bsd->bs", q[:, t, head], k[:, : t + 1, source])
            weights = np.exp(scores / np.sqrt(layout.key_dim))
            weights /= weights.sum(axis=1, keepdims=True)
            y[:, t, head] = np.einsum("bs,bsm->bm", weights, v[:, : t + 1, source])
    return dense(params["out"], y.reshape(batch, steps, -1))


def ramnet(layer, params, x):
    bases = (layer.base,) * layer.digits if isinstance(layer.base, int) else layer.base
    lead, slots = (*x.shape[:2], layer.num_heads), np.prod(bases)
    moving = np.arange(layer.num_heads) < round(layer.cape_share * layer.num_heads)
    time = np.arange(x.shape[1])[None, :, None, None]
    addresses, sizes = [], [lead[2] * layer.slot_width, lead[2] * sum(bases)]
    v, *parts = np.split(
        convolved(params, x, ("value", "write", "read")), np.cumsum(sizes), axis=-1
    )
    for name, scores in zip(("write", "read"), parts, strict=True):
        scores = scores.reshape(*lead, -1)
        tau = layer.initial_temperature * np.exp(params[f"{name}_temperature"])
        product, begin = np.ones((*lead, 1)), 0
        for u, base in enumerate(bases):  # a later digit counts more
            part = np.exp(scores[..., begin : begin + base] / tau[:, u, None])
            digit, begin = part / part.sum(axis=-1, keepdims=True), begin + base
            product = (digit[..., :, None] * product[..., None, :]).reshape(*lead, -1)
        ids = np.argsort(-product, axis=-1, kind="stable")[..., : layer.top_k]
        weights = np.take_along_axis(product, ids, axis=-1)
        if layer.renormalise:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        addresses += [np.where(moving[:, None], (ids - time) % slots, ids), weights]
    v = v.reshape(*lead, -1)
    forget = dense(params["forget"], x)
    if layer.retention == "pdma":
        forget = softplus(forget)
    y, *_ = oracles.slots(*addresses, v, forget, slots, layer.retention)
    if layer.output_norm:
        y = rms_norm(params["norm"], y)
    return dense(params["out"], y.reshape(*x.shape[:2], -1) * sigmoid(dense(params["gate"], x)))


DEFINITIONS = {
    "bayesian": bayesian,
    "deltanet": deltanet,
    "gated_deltanet": gated_deltanet,
    "kda": kda,
    "linear_attention": linear_attention,
    "retnet": retnet,
    "gla": gla,
    "gsa": gsa,
    "mamba2": mamba2,
    "attention": attention,
    "ramnet": ramnet,
}
