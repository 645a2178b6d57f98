"""The exact Kalman chunk on a GPU; see README.md beside this file."""
