"""The latent-input family: linear attention, RetNet, GLA, SSD (Mamba-2)."""
