"""The compiler for GPUs that are not here: what its tests need, and what it says of a program.

NVIDIA's assembler, `ptxas`, is called through a script that keeps each kernel and what is said of it.
"""

import importlib.util
import os
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled

from tests.support.programs import compilation_options
from train.devices.absent_gpus import absent_gpus, missing_compiler, toolkit

INSTALL = "pip install --no-deps -r tests/gpu_aot/requirements.txt"

OPTIONS: dict[str, str | int | bool] = {
    "xla_backend_optimization_level": 3,  # whatever XLA_FLAGS say
    "xla_gpu_enable_triton_gemm": False,  # nothing can be timed: take cuBLAS for every product
    "xla_gpu_enable_libnvptxcompiler": False,  # assemble by `ptxas`
    "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
}

KEEPING = """#!/bin/sh
# the assembler, which here keeps its input, its output and what it says
case "$*" in *--version*) exec {ptxas} "$@" ;; esac
input=$1 kept={folder}/$$
{ptxas} -v "$@" 2> "$kept.log" || {{ status=$?; cat "$kept.log" >&2; exit $status; }}
cp "$input" "$kept.ptx"
previous=
for word; do
  [ "$previous" = -o ] && cp "$word" "$kept.cubin"
  previous=$word
done
exit 0
"""


class Kernel(NamedTuple):
    """A kernel, as it was assembled.

    Attributes:
        registers: registers of a thread.
        spilled: bytes that a thread stores to memory and loads from it for want of registers.
        loads: number of loads from global memory in its PTX, by width: "v4.b32", "b16".
        stores: number of stores to it, likewise.
        code: its machine code.
    """

    registers: int
    spilled: int
    loads: Counter[str]
    stores: Counter[str]
    code: bytes

    def instructions(self) -> Counter[str]:
        """Return the number of its machine instructions by name, without their modifiers."""
        pattern = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\w+)"
        return Counter(re.findall(pattern, self.disassembled(), re.MULTILINE))

    def disassembled(self) -> str:
        """Return its machine code as text."""
        with NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.code)
            file.flush()
            command = [toolkit() / "bin/nvdisasm", "-c", file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Program(NamedTuple):
    """A program compiled for an absent GPU.

    Attributes:
        compiled: the program.
        kernels: its kernels by name.
    """

    compiled: Compiled
    kernels: dict[str, Kernel]

    @property
    def text(self) -> str:
        """The optimized HLO."""
        return self.compiled.as_text() or ""

    @property
    def temporary(self) -> int:
        """Bytes of temporary memory."""
        analysis: Any = self.compiled.memory_analysis()
        return analysis.temp_size_in_bytes


def require(missing: list[str]) -> None:
    """Skip where a package is missing, or fail where the environment has PEJAX_REQUIRE_GPU_COMPILER=1."""
    if missing:
        reason = f"{', '.join(missing)} must be installed to compile for a GPU: {INSTALL}"
        if os.environ.get("PEJAX_REQUIRE_GPU_COMPILER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def require_cudnn() -> None:
    """Require cuDNN, which plans its kernels while a program is compiled."""
    require([] if importlib.util.find_spec("nvidia.cudnn") else ["nvidia-cudnn-cu13"])


@pytest.fixture(autouse=True)
def compiler():
    """Require the compiler, and do not read programs that `--keep-programs` kept: their kernels would not be seen."""
    tools = toolkit()  # a system's own CUDA will not do: the assembler is called through a script
    packages = {"nvidia-cuda-nvcc": "ptxas", "nvidia-cuda-nvdisasm": "nvdisasm"}
    shortfall = [name for name, command in packages.items() if tools is None or not (tools / "bin" / command).exists()]
    require(sorted({*missing_compiler(), *shortfall}))
    with compilation_options(jax_enable_compilation_cache=False):
        yield


def gpu_mesh(family: str = "h200") -> Mesh:
    """Return a mesh of one absent GPU."""
    return Mesh(np.asarray(absent_gpus(family)), ("data",))


def program(function: Callable, *shapes: Any, family: str = "h200") -> Program:
    """Compile a function of arrays of these shapes for an absent GPU."""
    mesh = gpu_mesh(family)
    place = NamedSharding(mesh, PartitionSpec())
    operands = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
    with jax.set_mesh(mesh):  # pejax reads the platform from it
        return assembled(jax.jit(function).lower(*operands))


def assembled(lowered: jax.stages.Lowered) -> Program:
    """Compile what was lowered for an absent GPU, and keep its kernels."""
    tools = toolkit()
    if tools is None:
        raise ValueError(f"the assembler must be that of nvidia-cuda-nvcc, got none: {INSTALL}")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("bin", "mosaic"):
            (folder / part).mkdir()
        (folder / "nvvm").symlink_to(tools / "nvvm")
        script = folder / "bin/ptxas"
        script.write_text(KEEPING.format(ptxas=shlex.quote(str(tools / "bin/ptxas")), folder=shlex.quote(name)))
        script.chmod(0o755)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("MOSAIC_GPU_DUMP_TO", str(folder / "mosaic"))
            compiled = lowered.compile(compiler_options={**OPTIONS, "xla_gpu_cuda_data_dir": name})
        for ptx in (folder / "mosaic").glob("*.ptx"):  # Mosaic GPU assembles its kernels by itself
            target = re.search(r"\.target (\w+)", ptx.read_text(encoding="utf-8"))
            assert target is not None
            subprocess.run([script, ptx, "-arch", target[1], "-o", ptx.with_suffix(".cubin")], check=True)
        logs = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.log"))}
        kernels = {
            entry[1]: kernel(path, log)
            for path, log in logs.items()
            if (entry := re.search(r"Compiling entry function '(\S+)'", log))
        }
    return Program(compiled, kernels)


def kernel(path: Path, log: str) -> Kernel:
    """Return what the assembler's log, the PTX and the machine code beside it say of a kernel."""
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise ValueError(f"ptxas must tell registers and spills, got {log!r}")
    ptx = path.with_suffix(".ptx").read_text(encoding="utf-8")
    widths = lambda word: Counter(re.findall(rf"\b{word}\.global(?:\.nc|\.L\w+::\w+)*\.((?:v\d\.)?[bfsu]\d+)", ptx))
    code = path.with_suffix(".cubin").read_bytes()
    return Kernel(int(registers[1]), int(spills[1]) + int(spills[2]), widths("ld"), widths("st"), code)


def total_bytes(widths: Counter[str]) -> int:
    """Return the bytes of loads or stores of these widths."""
    return sum(count * access_bytes(width) for width, count in widths.items())


def mean_bytes(widths: Counter[str]) -> float:
    """Return the mean bytes of a load or store."""
    return total_bytes(widths) / widths.total()


def access_bytes(width: str) -> int:
    """Return the bytes of a load or store of one width, "v4.b32"."""
    *vector, element = width.split(".")
    return int(element[1:]) // 8 * (int(vector[0][1:]) if vector else 1)
