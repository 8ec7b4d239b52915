"""A page of the results of many runs: `python -m train.report`."""
