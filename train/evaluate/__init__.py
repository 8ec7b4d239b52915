"""Evaluate trained runs of any program again, and compare many runs."""
