"""Run `python -m train.tune`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.engine.command_line import refuse_mistyped
    from train.tune.config import Config

    refuse_mistyped(Config)

    from train.tune.program import main

    finish(main)
