"""Run `python -m train.vit`."""

from train.devices.cpu import finish, prepare_cpu
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("vit.config", "engine.config")
    prepare_cpu()  # before anything heavy is imported

    from train.vit.program import main

    finish(main)
