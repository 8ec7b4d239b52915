"""Run `python -m train.plan`."""

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # the machine that plans may well have accelerators of its own

    from train.plan.program import main

    raise SystemExit(main())
