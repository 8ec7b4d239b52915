"""Run `python -m train.seq2seq`."""

from train.devices.cpu import finish, prepare_cpu
from train.engine.option_names import require_options

if __name__ == "__main__":
    require_options("seq2seq.config", "engine.sequence_config", "engine.config")
    prepare_cpu()  # before anything heavy is imported

    from train.seq2seq.program import main

    finish(main)
