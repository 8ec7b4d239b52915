"""Run `python -m train.extend`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.extend.options import parser

    parser().refuse_mistyped()

    from train.extend.program import main

    finish(main)
