"""Experiments: a base with a comment on every key (`common`), and small changes to it."""
