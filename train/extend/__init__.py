"""Measures loaded language models beyond their trained length, with and without extensions of their positions."""
