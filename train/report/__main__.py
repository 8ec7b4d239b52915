"""Run `python -m train.report`."""

from train.devices.cpu import finish, prepare_imports
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("report.program")
    prepare_imports()  # while everything heavy is imported

    from train.report.program import main

    finish(main)
