"""Run `python -m train.lm`."""

from train.devices.cpu import finish, prepare_cpu
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("lm.config", "engine.sequence_config", "engine.config")
    prepare_cpu()  # before anything heavy is imported

    from train.lm.program import main

    finish(main)
