"""Run `python -m train.generate`."""

import os

from train.devices.cpu import finish, prepare_cpu

if __name__ == "__main__":
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")  # one text at a time: all cores share each operation
    prepare_cpu()  # before anything heavy is imported

    from train.generate.options import parser

    parser().refuse_mistyped()

    from train.generate.program import main

    finish(main)
