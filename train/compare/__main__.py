"""Run `python -m train.compare`."""

from train.devices.cpu import finish, prepare_imports

if __name__ == "__main__":
    prepare_imports()  # while everything heavy is imported

    from train.compare.command_line import refuse_mistyped

    refuse_mistyped()

    from train.compare.program import main

    finish(main)
