"""Run `python -m train.plan`."""

import os

from train.devices.cpu import stop_at_once

if __name__ == "__main__":
    stop_at_once()
    os.environ["JAX_PLATFORMS"] = "cpu"  # this machine may have accelerators of its own

    from train.plan.program import main

    raise SystemExit(main())
