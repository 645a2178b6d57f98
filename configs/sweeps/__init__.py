"""Grids of runs for `launch.sweep`: mixers, widths, learning rates and seeds of one experiment."""
