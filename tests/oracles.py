"""NumPy float64 oracles of the ops, written from the equations, one token and one head at a time.

They share no code with the package, and use holomorphic arithmetic only, so that a complex step
through them, `directional_derivative`, gives derivatives to the last digit.
"""

import numpy as np

EPSILON = 1e-30


def _heads(x, heads):
    """Repeats [B, T, Hk, ...] to all heads."""
    return np.repeat(x, heads // x.shape[2], axis=2)


def _rotation(angle):
    """The block-diagonal matrix R(angle) [D, D] of 2 x 2 rotations of interleaved pairs."""
    dim = 2 * len(angle)
    matrix = np.zeros((dim, dim), np.result_type(angle, np.float64))
    for pair, theta in enumerate(angle):
        c, s = np.cos(theta), np.sin(theta)
        matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[c, -s], [s, c]]
    return matrix


def _walk(segment_ids, steps):
    """Yields (t, start of a new document, padding) for one row."""
    document = None
    for t in range(steps):
        if segment_ids is None:
            yield t, False, False
        elif segment_ids[t] < 0:
            yield t, False, True
        else:
            yield t, document is not None and document != segment_ids[t], False
            document = segment_ids[t]


def _transition(log_decay, angle, dim):
    a = np.eye(dim) if log_decay is None else np.diag(np.exp(log_decay * np.ones(dim)))
    return a if angle is None else a @ _rotation(angle)


def kalman(
    q,
    k,
    v,
    process_var,
    obs_var,
    log_decay=None,
    angle=None,
    prior_var=1.0,
    state=None,
    segment_ids=None,
):
    """Filters with plain covariance updates; returns y, var, (mean, cov) in ops' shapes."""
    batch, steps, heads, value_dim = v.shape
    dim = k.shape[3]
    obs_var = obs_var if obs_var.ndim == 4 else obs_var[..., None]
    groups = obs_var.shape[3]
    width = value_dim // groups
    q, k, process_var, obs_var = (_heads(x, heads) for x in (q, k, process_var, obs_var))
    log_decay = None if log_decay is None else _heads(log_decay, heads)
    angle = None if angle is None else _heads(angle, heads)
    prior_var = np.broadcast_to(prior_var, (heads,))
    given = [
        x for x in (q, k, v, process_var, obs_var, log_decay, angle, prior_var) if x is not None
    ]
    dtype = np.result_type(np.float64, *given, *(() if state is None else state))
    noisy = np.eye(dim) if angle is None else np.diag(np.arange(dim) % 2 == 0).astype(float)
    y = np.zeros(v.shape, dtype)
    var = np.zeros((batch, steps, heads, groups), dtype)
    mean = np.zeros((batch, heads, dim, value_dim), dtype)
    cov = np.zeros((batch, heads, groups, dim, dim), dtype)
    cov[:] = prior_var[:, None, None, None] * np.eye(dim)
    if state is not None:
        mean[:], cov[:] = state
    for b, h, g in np.ndindex(batch, heads, groups):
        m, p = mean[b, h, :, g * width : (g + 1) * width], cov[b, h, g]
        for t, start, padding in _walk(None if segment_ids is None else segment_ids[b], steps):
            if padding:
                continue
            if start:
                m, p = np.zeros_like(m), prior_var[h] * np.eye(dim)
            a = _transition(
                None if log_decay is None else log_decay[b, t, h],
                None if angle is None else angle[b, t, h],
                dim,
            )
            m, p = a @ m, a @ p @ a.T + process_var[b, t, h] * noisy
            u = p @ k[b, t, h]
            gain = u / (obs_var[b, t, h, g] + k[b, t, h] @ u)
            m = m + np.outer(gain, v[b, t, h, g * width : (g + 1) * width] - m.T @ k[b, t, h])
            p = p - np.outer(gain, u)
            y[b, t, h, g * width : (g + 1) * width] = m.T @ q[b, t, h]
            var[b, t, h, g] = q[b, t, h] @ p @ q[b, t, h]
        mean[b, h, :, g * width : (g + 1) * width], cov[b, h, g] = m, p
    return y, var, mean, cov


def _memory(q, k, v, log_decay, state, segment_ids, write):
    """Walks a memory M through all tokens; `write(m, b, t, h)` returns M after the write."""
    batch, steps, heads, value_dim = v.shape
    q = _heads(q, heads)
    log_decay = None if log_decay is None else _heads(log_decay, heads)
    given = [x for x in (q, k, v, log_decay, state) if x is not None]
    y = np.zeros(v.shape, np.result_type(np.complex128, *given))
    memory = np.zeros((batch, heads, k.shape[3], value_dim), y.dtype)
    if state is not None:
        memory[:] = state
    for b, h in np.ndindex(batch, heads):
        m = memory[b, h]
        for t, start, padding in _walk(None if segment_ids is None else segment_ids[b], steps):
            if padding:
                continue
            m = np.zeros_like(m) if start else m
            decay = None if log_decay is None else log_decay[b, t, h]
            m = write(_transition(decay, None, k.shape[3]) @ m, b, t, h)
            y[b, t, h] = m.T @ q[b, t, h]
        memory[b, h] = m
    if not any(np.iscomplexobj(x) for x in given):
        return _real(y), _real(memory)
    return y, memory


def _real(x):
    return x.real if not np.any(x.imag) else x


def delta(q, k, v, beta, log_decay=None, state=None, segment_ids=None):
    """Delta rule; returns y and the memory."""
    k, beta = _heads(k, v.shape[2]), _heads(beta, v.shape[2])

    def write(m, b, t, h):
        return m + beta[b, t, h] * np.outer(k[b, t, h], v[b, t, h] - m.T @ k[b, t, h])

    return _memory(q, k, v, log_decay, state, segment_ids, write)


def additive(q, k, v, gain=None, log_decay=None, state=None, segment_ids=None):
    """Additive recurrence; returns y and the memory."""
    k = _heads(k, v.shape[2])
    gain = np.ones(v.shape[:3]) if gain is None else _heads(gain, v.shape[2])

    def write(m, b, t, h):
        return m + gain[b, t, h] * np.outer(k[b, t, h], v[b, t, h])

    return _memory(q, k, v, log_decay, state, segment_ids, write)


def slots(
    write_ids,
    write_weights,
    read_ids,
    read_weights,
    v,
    forget,
    num_slots,
    retention="gsu",
    state=None,
    segment_ids=None,
):
    """RAM-Net's slots, one at a time; returns o, content and mass."""
    batch, steps, heads, value_dim = v.shape
    given = [write_weights, read_weights, v, forget, *(() if state is None else state)]
    o = np.zeros(v.shape, np.result_type(np.float64, *given))
    content = np.zeros((batch, heads, num_slots, value_dim), o.dtype)
    mass = np.full((batch, heads, num_slots), 1 / num_slots, o.dtype)
    if state is not None:
        content[:], mass[:] = state
    for b, h in np.ndindex(batch, heads):
        s, m = content[b, h], mass[b, h]
        for t, start, padding in _walk(None if segment_ids is None else segment_ids[b], steps):
            if padding:
                continue
            if start:
                s[:], m[:] = 0, 1 / num_slots
            gamma = forget[b, t, h]
            for a, w in zip(write_ids[b, t, h], write_weights[b, t, h], strict=True):
                if w == 0:
                    continue
                if retention == "gsu":
                    keep = (1 - w) / (1 - w + w * np.exp(gamma))
                else:
                    keep = (1 - w) ** gamma
                m[a] = keep * m[a] + w
                s[a] = s[a] + w / (m[a] + 1e-12) * (v[b, t, h] - s[a])
            for a, r in zip(read_ids[b, t, h], read_weights[b, t, h], strict=True):
                o[b, t, h] += r * s[a]
    return o, content, mass


def gated_slots(q, k, v, log_decay, state=None, segment_ids=None):
    """Gated slot attention; returns y, the slots' keys and their values."""
    batch, steps, heads, value_dim = v.shape
    q, k, log_decay = (_heads(x, heads) for x in (q, k, log_decay))
    given = [q, k, v, log_decay, *(() if state is None else state)]
    y = np.zeros(v.shape, np.result_type(np.float64, *given))
    shape = (batch, heads, log_decay.shape[-1])
    keys, values = np.zeros((*shape, k.shape[-1]), y.dtype), np.zeros((*shape, value_dim), y.dtype)
    if state is not None:
        keys[:], values[:] = state
    for b, h in np.ndindex(batch, heads):
        for t, start, padding in _walk(None if segment_ids is None else segment_ids[b], steps):
            if padding:
                continue
            if start:
                keys[b, h], values[b, h] = 0, 0
            a = np.exp(log_decay[b, t, h])[:, None]
            keys[b, h] = a * keys[b, h] + (1 - a) * k[b, t, h]
            values[b, h] = a * values[b, h] + (1 - a) * v[b, t, h]
            weights = np.exp(keys[b, h] @ q[b, t, h])
            y[b, t, h] = weights / weights.sum() @ values[b, h]
    return y, keys, values


def directional_derivative(oracle, arguments, name, direction, cotangents):
    """Returns sum <cotangent, d oracle / d arguments[name] . direction> by a complex step.

    Args:
      oracle: one of this module's.
      arguments: its keyword arguments; `state` may be a tuple of arrays.
      name: the argument to vary.
      direction: of the argument's shape (a tuple for a tuple).
      cotangents: one array an output.
    """
    value = arguments[name]
    if isinstance(value, tuple):
        varied = tuple(x + 1j * EPSILON * d for x, d in zip(value, direction, strict=True))
    else:
        varied = value + 1j * EPSILON * direction
    outputs = oracle(**(arguments | {name: varied}))
    return sum(
        float(np.sum(c * np.imag(y))) / EPSILON for c, y in zip(cotangents, outputs, strict=True)
    )
