"""What an encoding will get on a GPU and on a TPU, told without one: as attention chooses there."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import pejax
from pejax import Dims, TokenPositions, adapt, explain_attention, grid_positions, init_params
from pejax._attention import backends
from pejax._attention.core.hooks import bound_hooks
from pejax.testing import assert_runs_in_kernels
from tests.support import pair_hooks

MESHES = {
    "gpu": AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")),
    "tpu": AbstractMesh((), (), abstract_device=AbstractDevice("TPU v5 lite", None, "tpu")),
}
DIMS = {
    "sequence": Dims(4, 64, extent=64),
    "causal": Dims(4, 64, extent=64, causal=True),
    "grid": Dims(4, 64, axes=2, extent=(8, 8)),
}
QUICK = {("alibi", "causal"), ("t5", "grid")}


def pairs():
    """Return every encoding with every dims that it takes; some of them for every run."""
    for name, factory in pejax.ENCODINGS.items():
        for kind, dims in DIMS.items():
            try:
                encoding = factory(dims)
            except ValueError:
                continue
            case = functools.partial(pytest.param, encoding, id=f"{name}, {kind}")
            yield case() if (name, kind) in QUICK else case(marks=pytest.mark.slow)


@pytest.mark.parametrize("encoding", [*pairs()])
def test_it_is_what_attention_chooses_on_that_device(encoding, monkeypatch):
    # cuDNN is not here, and JAX looks for it; what it would be asked is the same.
    monkeypatch.setitem(backends.IMPLEMENTATIONS, "cudnn", backends.KERNELS["cudnn"].trial)
    monkeypatch.setattr(jax, "device_count", lambda: 1)  # kernels are not split over several
    dims = encoding.dims
    try:
        use = assert_runs_in_kernels(encoding)
    except AssertionError as error:
        use = dict.fromkeys(backends.KERNELS, str(error))
    assert set(use) == set(backends.KERNELS)
    tokens = TokenPositions(grid_positions(32, 32), order=jnp.arange(1024)) if dims.axes == 2 else None
    params = adapt(encoding, init_params(encoding, jax.random.key(0)), dims.extent)
    q = jax.ShapeDtypeStruct((1, 1024, 4, 64), jnp.bfloat16)
    for device, mesh in MESHES.items():
        with use_abstract_mesh(mesh):
            said = explain_attention(
                q, q, q, positions=tokens, hooks=bound_hooks(encoding, params), causal=dims.causal
            )  # fmt: skip
        first, *lines = said.split("\n")
        assert first.startswith(f"{device}:")
        lines = dict(line.split(": ", 1) for line in lines)
        for name in backends.PREFERENCES[device].kernels:
            if name in use and not lines[name].startswith("not needed"):
                runs = lines[name] == "runs"
                assert use[name].startswith("runs") == runs, (name, use[name], lines[name])
                assert runs or lines[name].split(";")[0] in use[name]


def test_what_runs_in_no_kernel_is_an_error_with_the_hook_the_operation_and_the_way_out():
    def looked_up(params, q, k, i, j):
        return params["table"][jnp.clip(j[None] - i[:, None], 0, 7)]

    dims = Dims(2, 8, causal=True)
    encoding = pejax.Encoding(init=lambda key: {"all": {"table": jnp.ones(8)}}, bias=looked_up, dims=dims)
    with pytest.raises(AssertionError) as error:
        assert_runs_in_kernels(encoding)
    for part in ("cudnn: your own bias hook", "looked_up does gather to tokens", 'implementation="blockwise" takes'):
        assert part in str(error.value)


def test_the_implementations_asked_are_those_that_count():
    encoding = pair_hooks.encoding("gates", Dims(2, 8))
    assert assert_runs_in_kernels(encoding, implementations=["tpu"]) == {
        "tpu": "runs: the bias hook runs in every tile"
    }
    with pytest.raises(AssertionError, match=r"your own bias hook .* only from distance_bias"):
        assert_runs_in_kernels(encoding, implementations=["gpu", "cudnn"])
    with pytest.raises(ValueError, match=r"must be of \('cudnn', 'gpu', .*'tpu'\), .* got 'blockwise'"):
        assert_runs_in_kernels(encoding, implementations=["blockwise"])
    with pytest.raises(ValueError, match="dims must be given"):
        assert_runs_in_kernels(pejax.Encoding())
