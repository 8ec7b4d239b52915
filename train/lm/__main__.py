"""Run `python -m train.lm`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.engine.command_line import refuse_mistyped
    from train.lm.config import Config

    refuse_mistyped(Config)

    from train.lm.program import main

    finish(main)
