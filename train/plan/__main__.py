"""Run `python -m train.plan`."""

import os
import signal

from train.devices.cpu import finish, prepare_imports
from train.engine.option_names import TRAINERS, require_options

if __name__ == "__main__":
    require_options("plan.program", *TRAINERS)
    prepare_imports()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # where nobody reads on, it need not compile on
    os.environ["JAX_PLATFORMS"] = "cpu"  # this machine may have accelerators of its own

    from train.plan.program import main

    finish(main)
