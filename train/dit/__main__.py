"""Run `python -m train.dit`."""

from train.devices.cpu import finish, prepare_cpu
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("dit.config", "engine.config")
    prepare_cpu()  # before anything heavy is imported

    from train.dit.program import main

    finish(main)
