"""Run `python -m train.compare`."""

from train.devices.cpu import finish, prepare_imports
from train.engine.option_names import TRAINERS, require_options

if __name__ == "__main__":
    require_options("compare.options", *TRAINERS)
    prepare_imports()  # while everything heavy is imported

    from train.compare.program import main

    finish(main)
