"""Run `python -m train.dit`."""

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    prepare_cpu()  # before anything heavy is imported

    from train.dit.program import main

    finish(main)
