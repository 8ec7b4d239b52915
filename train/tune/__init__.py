"""Fine-tunes loaded language models, whole or by low-rank changes."""
