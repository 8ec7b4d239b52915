"""Attention in tiles, written in XLA operations: one implementation for any device, and a faster one for CPUs."""
