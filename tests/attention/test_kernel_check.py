"""What finds out whether kernels compile, and whether their tiles fit the shared memory of a GPU."""

import jax
import jax.numpy as jnp
import pytest

from pejax import check_kernels, explain_attention
from pejax._attention import api, backends, kernel_check
from pejax._attention.compiling import compile_error
from pejax._attention.gpu.gpu_padding import tile_sizes
from pejax._attention.gpu.shared_memory import BACKWARD, CONTENTS, LIMITS, fitting_blocks, shared_bytes

Q = jax.ShapeDtypeStruct((1, 24, 2, 8), jnp.float32)


@pytest.mark.slow
def test_classes_that_do_not_compile_are_returned_with_the_reason(monkeypatch):
    compiled = []

    def refusing(function, q, *others):
        compiled.append(q)
        return ("out of shared memory" if q.dtype == jnp.float32 and q.shape[-1] == 128 else "", 0.1)

    monkeypatch.setattr(kernel_check, "compile_error", refusing)
    result = check_kernels(implementations=["blockwise", "reference"])
    assert len(compiled) == 2 * 3 * 2 * 2
    assert result == {
        f"{name}, {bias}, D=128, float32": "out of shared memory"
        for name in ("blockwise", "reference")
        for bias in ("no bias", "bias in a tile", "bias by distance")
    }


def test_classes_that_an_implementation_declares_not_to_support_are_left_out(monkeypatch):
    monkeypatch.setattr(kernel_check, "compile_error", lambda *_: ("refused", 0.1))
    assert check_kernels(head_dims=[8], dtypes=["float32"], implementations=["cudnn"]) == {}


def test_one_implementation_compiles_here_in_every_class():
    assert check_kernels(head_dims=[8], dtypes=["float32"], implementations=["reference"]) == {}


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match=r"one of .*'blockwise'.* got 'flash'"):
        check_kernels(implementations=["flash"])


def test_a_failure_is_told_in_one_line_whatever_its_type():
    def broken(x):
        raise RuntimeError("ptxas: too much shared data\nand a page of more")

    assert compile_error(broken, Q)[0] == "ptxas: too much shared data"
    assert compile_error(lambda x: x * 2, Q)[0] == ""


@pytest.mark.slow
def test_the_explanation_says_whether_what_runs_compiles():
    text = explain_attention(Q, Q, Q, causal=True, implementation="blockwise", compile=True)
    assert "\nblockwise: runs; compiled forward and backward in " in text


def test_the_explanation_says_what_to_do_where_a_kernel_does_not_compile(monkeypatch):
    monkeypatch.setattr(api, "compile_error", lambda *_: ("RESOURCE_EXHAUSTED: shared memory", 0.1))
    text = explain_attention(Q, Q, Q, implementation="gpu", compile=True)
    rule = 'but does not compile here: RESOURCE_EXHAUSTED: shared memory; implementation="blockwise" needs no kernel'
    assert f"gpu: runs interpreted, for tests: this is not a GPU, {rule}" in text


def test_nothing_is_compiled_where_nothing_runs(monkeypatch):
    monkeypatch.setattr(api, "compile_error", lambda *_: pytest.fail("compiled"))
    assert "cudnn: fused kernels take" in explain_attention(Q, Q, Q, implementation="cudnn", compile=True)


@pytest.mark.parametrize("capability", LIMITS)
@pytest.mark.parametrize("width", [32, 64, 128, 256, 512])
def test_every_tile_fits_the_shared_memory(capability, width):
    limit = LIMITS[capability] * 1024
    forward_blocks, backward_blocks = tile_sizes(width, limit)
    assert shared_bytes("forward", forward_blocks, width) <= limit
    assert all(shared_bytes(kernel, backward_blocks, width) <= limit for kernel in BACKWARD)
    assert min(*forward_blocks, *backward_blocks) >= 16


def test_an_h100_takes_the_tiles_that_were_chosen_by_registers():
    tiles = {width: tile_sizes(width, LIMITS["9.0"] * 1024) for width in (128, 256, 512, 1024)}
    assert tiles == {
        128: ((128, 64), (64, 64)),
        256: ((128, 64), (64, 64)),
        512: ((64, 32), (32, 32)),
        1024: ((32, 16), (32, 16)),
    }


def test_a_loop_holds_its_blocks_twice_and_a_product_its_tile():
    """bfloat16, D = 64: q of 128 rows, k and v of 64 rows twice, and a float32 tile as operand and as scratch."""
    assert shared_bytes("forward", (128, 64), 128) == 128 * 128 + 2 * 2 * 64 * 128 + 2 * 128 * 64 * 4
    assert shared_bytes("diagonal_gradients", (64, 32), 128) == 2 * 4 * 32 * 128 + 32 * 32 * 4


def test_heads_that_fit_in_no_tile_are_refused_in_words():
    with pytest.raises(
        NotImplementedError, match="heads of 1024 bytes need 132096 bytes of shared memory, but this GPU has"
    ):
        fitting_blocks(tuple(CONTENTS), (32, 32), 1024, 99 * 1024)


def test_a_gpu_prefers_what_is_checked_there(monkeypatch):
    monkeypatch.setattr(kernel_check, "platform", lambda: "gpu")
    monkeypatch.setattr(kernel_check, "compile_error", lambda *_: ("no", 0.1))
    result = check_kernels(head_dims=[16], dtypes=["bfloat16"])
    assert {label.partition(",")[0] for label in result} == {*backends.PREFERENCES["gpu"].kernels} - {"cudnn"}
