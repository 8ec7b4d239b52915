"""The devices that JAX finds, or why it finds none."""

import os
import re
from typing import Any

import jax


def visible_devices() -> list[Any]:
    """Return the devices that JAX finds.

    Raises:
        ValueError: it finds none, as on a platform that this machine does not have.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as none:  # an empty AssertionError without a driver of GPUs
        reason = re.sub(r" \((set|you may need to) .*", "", " ".join(f"{none}".split())) or "it finds no such device"
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise ValueError(
            f"JAX_PLATFORMS must name what this machine has, got {platforms!r}: {reason}; "
            "unset it, or set JAX_PLATFORMS=cpu"
        ) from None
