"""Run `python -m train.embed`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.embed.options import parser

    parser().refuse_mistyped()

    from train.embed.program import main

    finish(main)
