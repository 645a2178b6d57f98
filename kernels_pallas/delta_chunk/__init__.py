"""The delta rule with one decay a head on a GPU; see README.md beside this file."""
