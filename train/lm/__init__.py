"""Language models: `python -m train.lm`."""
