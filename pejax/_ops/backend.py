"""The platform that JAX compiles for: CPU, GPU or TPU."""

import jax


def platform() -> str:
    """Return "cpu", "gpu" or "tpu": the platform of the current mesh if there is one, else of the default backend.

    The two differ when a program is compiled for devices that this machine does not have.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return name if name in ("cpu", "tpu") else "gpu"
