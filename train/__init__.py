"""The trainers, run from the checkout: `python -m train.vit --pe=rope_mixed`."""
