"""Run `python -m train.plan`."""

import os
import signal

from train.devices.cpu import finish, prepare_imports

if __name__ == "__main__":
    prepare_imports()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # where nobody reads on, it need not compile on
    os.environ["JAX_PLATFORMS"] = "cpu"  # this machine may have accelerators of its own

    from train.plan.options import refuse_mistyped

    refuse_mistyped()

    from train.plan.program import main

    finish(main)
