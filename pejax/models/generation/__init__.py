"""Generation of text, token by token."""
