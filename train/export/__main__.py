"""Run `python -m train.export`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.export.options import parser

    parser().refuse_mistyped()

    from train.export.program import main

    finish(main)
