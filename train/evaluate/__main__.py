"""Run `python -m train.evaluate`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.evaluate.options import parser

    parser().refuse_mistyped()

    from train.evaluate.program import main

    finish(main)
