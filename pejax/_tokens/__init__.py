"""Where tokens are: their positions, and the patches of pictures."""
