"""Run `python -m train.report`."""

from train.devices.cpu import finish, prepare_imports

if __name__ == "__main__":
    prepare_imports()  # while everything heavy is imported

    from train.report.options import parser

    parser().refuse_mistyped()

    from train.report.program import main

    finish(main)
