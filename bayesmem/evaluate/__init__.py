"""Measures of trained models and of the memory itself, one file a measure."""
