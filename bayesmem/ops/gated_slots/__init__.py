"""Gated slot attention: bounded keys and values, read by a softmax."""
