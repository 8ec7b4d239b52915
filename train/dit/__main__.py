"""Run `python -m train.dit`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.dit.config import Config
    from train.engine.command_line import refuse_mistyped

    refuse_mistyped(Config)

    from train.dit.program import main

    finish(main)
