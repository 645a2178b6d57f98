"""Training: a pure step, a loop, checkpoints, and what they need from Optax, Orbax and Grain."""
