"""Programs that are made ahead for an H200 have one name wherever they are asked for, and fit into the sealed file."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.hardware import ahead, device
from benchmarks.hardware.run import Settings, make_pool
from tests.support.absent_gpu import compiler

__all__ = ["compiler"]

pytestmark = [pytest.mark.gpu_aot, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROVED = {"kind": "t5", "implementation": "gpu", "precision": "bfloat16", "toy": False, "only_compile": True}

ON_A_GPU = """
import jax, json, sys
from benchmarks.hardware import attention_proof, programs
from train.devices.absent_gpus import absent_gpus

card = absent_gpus("h200")[0]
programs.device = lambda: card
programs.use()
jax.default_backend = lambda: "gpu"  # as where the card is
attention_proof.prove(**json.loads(sys.argv[1]))
print(json.dumps([*programs.asked()]))
"""


def test_a_program_is_sealed_and_has_the_same_name_where_the_card_is(tmp_path):
    """There JAX's first device is the GPU, and the checkout lies elsewhere."""
    settings = Settings(["prove"], 8.0, tmp_path / "made", card="h200", ahead=True, jobs=1)
    settings.out.mkdir()
    pool = make_pool(settings, "prove", settings.out, {})
    answer = pool.workers[0].ask("benchmarks.hardware.attention_proof:prove", PROVED, 300.0)
    pool.end()
    assert answer["outcome"] == "made", answer
    about = {"card": "NVIDIA H200", "versions": ahead.compilers(device.versions())}
    assert ahead.write(settings.out, about, [answer]) == 0
    with zipfile.ZipFile(settings.out / ahead.FILE) as archive:
        sizes = {item.filename: item.file_size for item in archive.infolist() if item.filename != ahead.INDEX}
    (name,) = answer["programs"]
    assert sizes.keys() == {f"{name}-cache"}
    assert 2**15 < sizes[f"{name}-cache"] < 2**19

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for package in ("benchmarks", "pejax", "train"):
        (elsewhere / package).symlink_to(ROOT / package)
    environment = {**pool.workers[0].environment, "PYTHONPATH": str(elsewhere)}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "empty")
    script = [sys.executable, "-c", ON_A_GPU, json.dumps(PROVED)]
    result = subprocess.run(script, capture_output=True, text=True, cwd=elsewhere, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    assert json.loads(result.stdout.splitlines()[-1]) == [name]
