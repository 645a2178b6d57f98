"""Ablations of RAM-Net: one file each, a published or small setting with one thing changed."""
