"""Attention in tiles, written in XLA operations: for any device, and a faster form for CPUs."""
