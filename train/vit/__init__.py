"""Vision transformers: `python -m train.vit`."""
