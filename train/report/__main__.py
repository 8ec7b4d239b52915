"""Run `python -m train.report`."""

from train.devices.cpu import finish, stop_at_once

if __name__ == "__main__":
    stop_at_once()  # while everything heavy is imported

    from train.report.program import main

    finish(main)
