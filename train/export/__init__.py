"""Runs as folders that transformers loads."""
