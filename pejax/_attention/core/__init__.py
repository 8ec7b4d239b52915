"""Shared by every implementation of attention: operands, masks, formulas, and the dense reference."""
