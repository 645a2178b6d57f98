"""RAM-Net's memory: many slots a head, of which each token writes and reads a few."""
