"""Run `python -m train.tune`."""

from train.devices.cpu import finish, prepare_cpu
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("tune.config", "lm.config", "engine.sequence_config", "engine.config")
    prepare_cpu()  # before anything heavy is imported

    from train.tune.program import main

    finish(main)
