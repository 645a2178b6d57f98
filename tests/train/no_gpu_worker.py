"""Run as a program: two training steps of a config while torch and triton cannot be imported."""

import logging
import sys

FORBIDDEN = ("torch", "triton", "jax_triton")


def main(workdir):
    """Trains; prints what was blocked and how many steps were done."""
    for name in FORBIDDEN:
        sys.modules[name] = None
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)

    from bayesmem.train.loop import train
    from configs import mqar

    config = mqar.get_config("bayesian").unlock()
    config.model.width, config.model.num_layers, config.model.mlp_width = 16, 1, 16
    config.data.update({"train_examples": 8, "valid_examples": 4, "seq_len": 16, "num_pairs": 2})
    config.optimizer.warmup_steps = 1
    config.train.update({"steps": 2, "batch_size": 2, "eval_batches": 1})
    result = train(config.lock(), workdir)
    print("blocked:", ", ".join(name for name in FORBIDDEN if sys.modules[name] is None))
    print("steps:", result["step"])


if __name__ == "__main__":
    main(sys.argv[1])
