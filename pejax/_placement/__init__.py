"""Placement: parts of a sequence, the rules by which models give them positions, and the function that does so."""
