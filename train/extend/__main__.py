"""Run `python -m train.extend`."""

from train.devices.cpu import finish, prepare_cpu
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("extend.options")
    prepare_cpu()  # before anything heavy is imported

    from train.extend.program import main

    finish(main)
