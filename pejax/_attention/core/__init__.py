"""What every implementation of attention shares: its operands, masks, formulas, and the dense reference."""
