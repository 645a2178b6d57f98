"""A small language model and loader with the interfaces that training relies on."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from configs import common

VOCAB, WIDTH, LENGTH = 11, 8, 6


class ToyModel(nn.Module):
    """Embedding, causal mean, one hidden layer; parameters carry logical axis names."""

    vocab_size: int = VOCAB
    width: int = WIDTH
    dtype: str = "float32"

    def setup(self):
        def kernel(*names):
            return nn.with_logical_partitioning(nn.initializers.normal(0.5), names)

        def bias(*names):
            return nn.with_logical_partitioning(nn.initializers.zeros, names)

        kind = jnp.dtype(self.dtype)
        self.embedding = self.param(
            "embedding", kernel("vocab", "embed"), (self.vocab_size, self.width), kind
        )
        self.up = self.param("kernel", kernel("embed", "mlp"), (self.width, 2 * self.width), kind)
        self.bias = self.param("bias", bias("mlp"), (2 * self.width,), kind)
        self.head = self.param(
            "head", kernel("mlp", "vocab"), (2 * self.width, self.vocab_size), kind
        )

    def hidden_states(self, tokens, state=None, *, segment_ids=None, positions=None):
        x = self.embedding[tokens]
        counts = jnp.arange(1, tokens.shape[1] + 1, dtype=x.dtype)[:, None]
        h = jnp.tanh((x + jnp.cumsum(x, axis=1) / counts) @ self.up + self.bias)
        return h, state

    def logits(self, hidden):
        return hidden @ self.head

    def __call__(self, tokens, state=None, *, segment_ids=None, positions=None):
        hidden, state = self.hidden_states(tokens, state)
        return self.logits(hidden), state


def batch_at(position, *, rows=8, length=LENGTH, vocab=VOCAB):
    """Batch number `position`: the next token is the sum of the last two, now and then unknown."""
    rng = np.random.default_rng([7, position])
    tokens = rng.integers(0, vocab, (rows, length + 1), dtype=np.int32)
    for step in range(2, length + 1):
        tokens[:, step] = (tokens[:, step - 1] + tokens[:, step - 2]) % vocab
    targets = np.where(rng.random((rows, length)) < 0.2, -100, tokens[:, 1:]).astype(np.int32)
    return {"inputs": tokens[:, :-1], "targets": targets}


class ToyLoader:
    """Batches 0, 1, 2, ... with the position as state."""

    def __init__(self, rows=8, end=None, poison=()):
        self.rows, self.end, self.poison, self.position = rows, end, poison, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == self.end:
            raise StopIteration
        batch = batch_at(self.position, rows=self.rows)
        self.position += 1
        return batch

    def get_state(self):
        return {"position": self.position, "rows": self.rows}

    def set_state(self, state):
        assert state["rows"] == self.rows
        self.position = state["position"]


def sweep_config(**changes):
    """Linear attention on rows of two pairs: small enough for a second."""
    data = common.mqar_data()
    data.seq_len, data.num_pairs, data.vocab_size = 16, 2, 12
    data.train_examples, data.test_examples = 16, 6
    config = common.base(data, 12)
    config.model.width, config.model.mlp_width, config.model.num_layers = 8, 0, 1
    config.train.steps, config.train.batch_size = 6, 4
    config.train.log_every, config.train.checkpoint_every = 2, 2
    config.optimizer.warmup_steps = 0
    common.use_mixers(config, "linear_attention", num_heads=2)
    common.sweep(config, ("linear_attention",))
    config.sweep.seeds, config.sweep.learning_rates = (0, 1), (1e-2, 1e-1)
    config.tests["longer"] = {"seq_len": 32}
    for path, value in changes.items():
        section, key = path.split("__")
        config[section][key] = value
    return config
