"""Figures, made from result files."""
