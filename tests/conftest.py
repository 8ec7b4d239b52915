"""Strict promotion, eight host devices, warnings as errors and runtime type checks for the whole test run."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import hypothesis
import jax
import pytest

pytest.register_assert_rewrite("cases", "laws", "biases")

jax.config.update("jax_numpy_dtype_promotion", "strict")
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.load_profile("fixed")
