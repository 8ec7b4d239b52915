"""The README's commands as their users start them: processes of their own, on a device per core, to their last line.

XLA is told to end a process whose devices wait for each other in vain after seconds instead of a minute, and to compile
without optimization.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.support.quick import QUICK

ROOT = Path(__file__).parents[2]
IMPATIENT = " ".join(f"--xla_cpu_collective_call_{end}_timeout_seconds=20" for end in ("warn_stuck", "terminate"))
SMALL = ("--layers=1", "--width=32", "--heads=2")
SHORT_VIT = (*SMALL, "--patch=7", "--epochs=1", "--batch=400", "--eval_limit=80", "--eval_sizes", "28", "42")
SHORT_LM = (*SMALL, "--steps=10", "--eval_limit=4", "--eval_stride=64", "--eval_lengths", "64", "128", "256")
SHORT_SEQ2SEQ = (*SMALL, "--encoder_layers=1", "--steps=10", "--eval_limit=64", "--eval_lengths", "4")


def started(*words: object, **settings: str) -> subprocess.Popen[str]:
    """Start `python -m WORDS` as from a shell that has set nothing but `settings`."""
    variables = ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "PJRT_NPROC", "PYTEST_CURRENT_TEST")
    environ = {name: value for name, value in os.environ.items() if name not in variables} | settings
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)], env={**environ, "XLA_FLAGS": f"{IMPATIENT} {QUICK}"}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def said(*words: object, status: int = 0, **settings: str) -> str:
    """Run a command to its end and return what it said; its status must be `status`."""
    process = started(*words, **settings)
    out, err = process.communicate(timeout=600)
    assert process.returncode == status, f"{out[-3000:]}\n{err[-3000:]}"
    return out if status == 0 else err


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A run of `train.vit`."""
    folder = tmp_path_factory.mktemp("images") / "a run"  # a path with a space
    out = said("train.vit", "--pe=rope_mixed", *SHORT_VIT, f"--out={folder}")
    *_, wrote, compare, report = out.splitlines()
    assert wrote == f"wrote results-pi_stretch=True.json, {folder}/results.json and .png"
    assert compare.startswith("next: python -m train.compare --pe=")
    assert report.startswith("next: python -m train.report runs")
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A run of `train.lm`."""
    folder = tmp_path_factory.mktemp("text") / "run"
    out = said("train.lm", "--pe=rope", *SHORT_LM, f"--out={folder}")
    assert out.rstrip().endswith(f"wrote {folder}/results.json and .png")
    return folder


@pytest.fixture(scope="module")
def factors(text) -> str:
    """The factors that `train.lm.longrope` found for the run."""
    short = ("--length=256", "--windows=1", "--generations=1", "--population=4", "--children=2", "--chunk=2")
    out = said("train.lm.longrope", text, *short)
    assert f"wrote {text / 'longrope-256.txt'}" in out
    return (text / "longrope-256.txt").read_text().strip()


def places(run, measure: str) -> list[int]:
    """Return the sizes or lengths of the numbers of a run."""
    numbers = json.loads((run / "results.json").read_text())["numbers"]
    return [number["at"] for number in numbers if number["measure"] == measure]


def test_images_are_trained_on(images):
    assert places(images, "top-1, %") == [28, 42]
    assert (images / "results.png").stat().st_size > 1000
    assert list((images / "tensorboard").iterdir())
    assert json.loads((images / "config.json").read_text())["pe"] == "rope_mixed"


@pytest.mark.slow
def test_a_corrupt_image_is_named_before_anything_is_written(tmp_path):
    for name in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "one.png")
    content = (tmp_path / "val/b/one.png").read_bytes()
    (tmp_path / "val/b/one.png").write_bytes(content[:40])
    out = said("train.vit", f"--data=folder:{tmp_path}", f"--out={tmp_path / 'run'}", status=2)
    assert re.search(r"^error: images of .* must be readable, got 1 of 4 that is not: .*val/b/one\.png: ", out, re.M)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_images_are_evaluated_again_and_compared(images, tmp_path):
    out = said("train.evaluate", images, "--extend=pi")
    assert out.rstrip().endswith(f"wrote {images}/results-pi.json and .png")
    numbers = [json.loads((images / f"{name}.json").read_text())["numbers"] for name in ("results", "results-pi")]
    assert numbers[0][0] == numbers[1][0]
    out = said("train.evaluate", "--compare", images, f"--to={tmp_path / 'both'}")
    assert out.rstrip().endswith(f"wrote {tmp_path}/both.md and {tmp_path}/both.png")


@pytest.mark.slow
def test_the_keys_that_heads_attend_to_are_counted(images):
    *sizes, last = map(json.loads, said("benchmarks.entropy", images, "--images=16").splitlines())
    assert [line["size"] for line in sizes] == last["sizes"] == [28, 42]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_an_evaluation_is_stopped(number, status, images):
    process = started("train.vit", "--resume", f"--out={images}", "--eval_limit=0", "--eval_sizes", "70", "98")
    assert process.stdout is not None
    while "laws:" not in (line := process.stdout.readline()):
        assert line, process.communicate()[1][-3000:]
    time.sleep(4.0)
    begun = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10.0
    assert process.returncode == status, err[-3000:]
    assert "wrote" not in out
    assert "stopped; step 25 is saved; go on with: python -m train.vit --resume" in err


@pytest.mark.slow
def test_a_report_reads_the_weights_of_a_run(images, tmp_path):
    out = said("train.report", images.parent, "-o", tmp_path / "report.html")
    assert f"wrote {tmp_path}/report.html, report.md and 5 figures; runs read: 1" in out
    probe = json.loads((images / "probe.json").read_text())
    assert [len(layer) for size in ("28", "42") for layer in probe["entropies"][size]["layer"]] == [2, 2]
    (frequencies,) = probe["learned"]
    assert frequencies["shape"] == [1, 2, 2, 8]
    assert 0 < frequencies["moved"] < 1
    text = (tmp_path / "report.md").read_text()
    assert "peak of the process" in text
    assert "Published results beside ours" in text


@pytest.mark.slow
def test_text_is_trained_on(text):
    assert places(text, "perplexity") == [64, 128, 256]


@pytest.mark.slow
def test_longrope_is_searched_and_its_factors_are_read(text, factors):
    assert len(factors.split(",")) > 1
    assert "results-longrope" in said("train.evaluate", text, f"--extend={factors}", "--eval_lengths", "128", "256")


SEQ2SEQ = ("--pe=rope", "--task=reverse", "--cross=unified")


@pytest.mark.slow
def test_answers_are_learned_and_counted(tmp_path):
    folder = tmp_path / "run"
    out = said("train.seq2seq", *SEQ2SEQ, *SHORT_SEQ2SEQ, f"--out={folder}")
    assert out.rstrip().endswith(f"wrote {folder}/results.json and .png")


@pytest.mark.slow
def test_a_stopped_run_of_answers_goes_on(tmp_path):
    folder = tmp_path / "run"
    out = said("train.seq2seq", *SEQ2SEQ, *SHORT_SEQ2SEQ, "--stop_at=4", f"--out={folder}")
    assert f"go on with: python -m train.seq2seq --resume --out={folder}" in out
    out = said("train.seq2seq", "--resume", "--stop_at=0", f"--out={folder}")
    assert "going on from step 4" in out
    assert out.rstrip().endswith(f"wrote {folder}/results.json and .png")


@pytest.mark.slow
def test_a_step_that_broke_is_computed_again(tmp_path):
    err = said("train.lm", *SHORT_LM, "--lr=1e30", "--log_every=5", f"--out={tmp_path}/run", status=2)
    place = next((tmp_path / "run").glob("offending-*"))
    assert f"python -m train.replay {place}" in err
    assert "the same as" in said("train.replay", place)


@pytest.mark.slow
def test_a_plan_is_made():
    out = said("train.plan", "lm", "--preset=gpt2_small", "--batch=64", "--topology=h100:8")
    assert "h100" in out


@pytest.mark.slow
def test_benchmarks_run_on_toys():
    assert said("benchmarks", "rope", "--toy", "--rounds=1")


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "4"])
def test_any_number_of_devices_comes_to_the_end(devices, tmp_path):
    out = said("train.vit", *SHORT_VIT, f"--out={tmp_path}/run", JAX_NUM_CPU_DEVICES=devices)
    assert f"{devices} x cpu" in out
    assert "results.json and .png" in out
