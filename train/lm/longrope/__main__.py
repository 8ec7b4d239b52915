"""Run `python -m train.lm.longrope`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.lm.longrope.options import parser

    parser().refuse_mistyped()

    from train.lm.longrope.program import main

    finish(main)
