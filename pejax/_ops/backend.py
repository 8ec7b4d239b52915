"""The platform that is compiled for."""

import jax


def platform() -> str:
    """Return "cpu", "gpu" or "tpu": that of the mesh in use, whose devices need not be here, else of the backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return name if name in ("cpu", "tpu") else "gpu"
