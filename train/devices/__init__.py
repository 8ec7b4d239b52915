"""Meshes of devices, several processes, CPUs, and the arithmetic that devices do."""
