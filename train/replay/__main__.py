"""Run `python -m train.replay`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.replay.options import parser

    parser().refuse_mistyped()

    from train.replay.program import main

    finish(main)
