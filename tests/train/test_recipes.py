"""The published recipes: their figures, their parts against independent ones, and whole on stand-ins of the data."""

import dataclasses
import json
import math
from pathlib import Path
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

from train.data.images import load, train_batches
from train.data.images.augment import Augment
from train.data.images.three_augment import CHANGES, jitter, three_augment
from train.data.text.loading import load_text
from train.data.text.shakespeare import read_embedded
from train.engine.optimizers import make_optimizer
from train.engine.parser import parse
from train.lm import program as lm
from train.lm.config import Config as TextConfig
from train.vit import program as vit
from train.vit.config import Config, evaluation_sizes
from train.vit.model import classification_losses


def settings(config, *names: str) -> dict:
    """Return some settings by name."""
    return {name: dataclasses.asdict(config)[name] for name in names}


def test_imagenet100_is_the_published_table():
    """The table of hyperparameters of the study: 224 px, 100 epochs, 50k steps, 10k of warm-up, AdamW, batch 256."""
    config = parse(Config, ["--preset=imagenet100"])
    published = {
        "size": 224, "epochs": 100, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05, "batch": 256,
        "rand_augment": True, "mixup": 0.8, "cutmix": 1.0, "erasing": 0.25, "label_smoothing": 0.1, "pool": "cls",
    }  # fmt: skip
    assert settings(config, *published) == published
    per_epoch = 130_000 // config.batch
    assert round(config.epochs * per_epoch, -4) == 50_000
    assert round(config.warmup * per_epoch, -4) == 10_000
    assert evaluation_sizes(config) == tuple(range(96, 513, 32))


def test_deit3_rope_is_the_published_command():
    """The command that trains rope_mixed_deit_small_patch16_LS, eight processes of 256 images, and its defaults."""
    config = parse(Config, ["--preset=deit3_rope"])
    published = {
        "size": 224, "patch": 16, "width": 384, "layers": 12, "heads": 6, "mlp_ratio": 4, "pool": "cls",
        "layer_scale": 1e-4, "pe": "rope_mixed", "batch": 8 * 256, "epochs": 400, "optimizer": "lamb", "lr": 4e-3,
        "weight_decay": 0.03, "warmup": 5.0, "clip": 1.0, "loss": "bce", "label_smoothing": 0.0, "erasing": 0.0,
        "stochastic_depth": 0.0, "three_augment": True, "repeats": 3, "mixup": 0.8, "cutmix": 1.0,
        "rand_augment": False,
    }  # fmt: skip
    assert settings(config, *published) == published


def test_tinystories_is_the_published_model():
    """Six layers of 384 channels in Llama's style, trained for one epoch at 256 tokens."""
    config = parse(TextConfig, ["--preset=tinystories"])
    published = {"layers": 6, "width": 384, "length": 256, "style": "llama", "windows": "contiguous"}
    assert settings(config, *published) == published
    assert 512 in config.lengths
    assert config.probe_every


@pytest.mark.slow
def test_lamb_is_that_of_optax_layer_by_layer():
    """Layers are stacked here; the independent optimizer gets each as a parameter of its own."""
    rng = np.random.default_rng(0)
    kernels, bias = rng.standard_normal((3, 4, 5)).astype(np.float32), np.zeros(5, np.float32)
    slopes = rng.standard_normal((6, 3, 4, 5)).astype(np.float32)
    config = parse(Config, ["--optimizer=lamb", "--lr=0.1", "--weight_decay=0.03"])
    ours, schedule = make_optimizer(config, steps=6, warmup=2)
    theirs = optax.lamb(schedule, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.03)
    plain = optax.adam(schedule, b1=0.9, b2=0.999)
    stacked = {"blocks": {"kernel": jnp.asarray(kernels), "bias": jnp.asarray(bias)}}
    layers, alone = [jnp.asarray(kernel) for kernel in kernels], jnp.asarray(bias)
    states = ours.init(stacked), theirs.init(layers), plain.init(alone)
    with jax.numpy_dtype_promotion("standard"):
        for slope in slopes:
            grads = {"blocks": {"kernel": jnp.asarray(slope), "bias": jnp.asarray(slope[0, 0])}}
            update, first = ours.update(grads, states[0], stacked)
            stacked = optax.apply_updates(stacked, update)
            update, second = theirs.update([jnp.asarray(layer) for layer in slope], states[1], layers)
            layers = optax.apply_updates(layers, update)
            update, third = plain.update(jnp.asarray(slope[0, 0]), states[2], alone)
            alone, states = optax.apply_updates(alone, update), (first, second, third)
    np.testing.assert_allclose(stacked["blocks"]["kernel"], np.stack(layers), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(stacked["blocks"]["bias"], alone, rtol=1e-5, atol=1e-7)


def test_the_schedule_ends_where_it_is_told():
    schedule = make_optimizer(parse(Config, ["--lr=4e-3", "--lr_end=1e-5"]), steps=400, warmup=5)[1]
    assert [float(schedule(step)) for step in (0, 5, 400)] == pytest.approx([0.0, 4e-3, 1e-5])


@pytest.mark.slow
def test_a_finished_run_rises_to_the_schedule_of_its_new_length():
    config = parse(Config, ["--lr=4e-3", "--lr_end=1e-5"])
    schedule = make_optimizer(config, 800, 10, restarts=(100, 400))[1]
    schedules = {steps: make_optimizer(config, steps, 10)[1] for steps in (100, 400, 800)}
    values = np.asarray([float(schedule(step)) for step in (0, 5, 99, 100, 105, 110, 399, 400, 410, 800)])
    half = lambda step, steps: (1e-5 + float(schedules[steps](step))) / 2
    first = [schedules[100](step) for step in (0, 5, 99)]
    expected = [*first, 1e-5, half(105, 400), schedules[400](110), schedules[400](399), 1e-5, schedules[800](410), 1e-5]
    np.testing.assert_allclose(values, np.asarray(expected, float), rtol=1e-5)
    with jax.numpy_dtype_promotion("standard"):
        rates = np.asarray(jax.vmap(schedule)(np.arange(801)))
    assert np.abs(np.diff(rates)).max() <= 4e-3 / 10 + 1e-7, "no jump is larger than a step of the warm-up"


def test_binary_cross_entropy_counts_every_class_mixed_in():
    logits = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    targets = np.float32([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]])
    there = [[1, 1, 0], [0, 0, 1]]
    expected = [
        sum(math.log1p(math.exp(-x if y else x)) for x, y in zip(row, ys, strict=True)) / 3
        for row, ys in zip(logits.tolist(), there, strict=True)
    ]
    losses = classification_losses(jnp.asarray(logits), jnp.asarray(targets), "bce", 0.0)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_three_augment_changes_in_three_ways_and_jitters():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    picture = Image.fromarray(pixels)
    rng = np.random.default_rng(1)
    gray, solarized, blurred = (np.asarray(change(picture, rng)) for change in CHANGES)
    assert (gray == gray[..., :1]).all()
    np.testing.assert_array_equal(solarized, np.where(pixels < 128, pixels, 255 - pixels))
    assert blurred.std() < pixels.std()
    flat = Image.new("RGB", (4, 4), (100, 100, 100))
    drawn = [np.asarray(jitter(flat, np.random.default_rng(seed)))[0, 0, 0] for seed in range(200)]
    assert 70 <= min(drawn) < 75 < 125 < max(drawn) <= 130
    again = [np.asarray(three_augment(picture, np.random.default_rng(3))) for _ in range(2)]
    np.testing.assert_array_equal(*again)


@pytest.mark.slow
def test_repeats_bring_an_image_several_times_in_a_batch():
    dataset = load("fashion")
    plain = next(train_batches(dataset, 4, 0, Augment()))
    batch = next(train_batches(dataset, 10, 0, Augment(repeats=3, crop=True)))
    uncropped_batch = next(train_batches(dataset, 10, 0, Augment(repeats=3)))
    np.testing.assert_array_equal(batch["label"], np.repeat(plain["label"], 3)[:10])
    np.testing.assert_array_equal(uncropped_batch["image"], np.repeat(plain["image"], 3, axis=0)[:10])
    assert np.abs(batch["image"][0] - batch["image"][1]).max() > 0


SMALL = (
    "--size=32", "--width=16", "--layers=2", "--heads=2", "--batch=8", "--epochs=1", "--warmup=0.5", "--log_every=1",
    "--probe_every=2", "--eval_sizes", "32", "--devices=1",
)  # fmt: skip


def image_folder(root: Path) -> Path:
    """Write class sub-folders of PNG and JPEG files, as ImageNet100 comes once its parts are put together."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 2)):
        for number, ending in enumerate(("png", "JPEG")):
            folder = root / split / f"n{number:08d}"
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (40 + index, 50, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.{ending}")
    return root


def finished(out: Path) -> list[dict]:
    assert (out / "results.json").is_file()
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_imagenet100_from_a_folder(tmp_path):
    data = image_folder(tmp_path / "imagenet100")
    assert "central square of 7/8 of the shorter side" in load(f"folder:{data}", 32).note
    assert vit.main(["--preset=imagenet100", f"--data=folder:{data}", *SMALL, f"--out={tmp_path / 'run'}"]) == 0
    lines = finished(tmp_path / "run")
    assert any("entropy/layer_1" in line for line in lines)
    assert any(name.startswith("position/") for line in lines for name in line)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_as_much_of_a_test_image_is_shown_as_is_asked_for(share, tmp_path):
    """A bright square of half the side in the middle of a dark picture fills the view, or a quarter of it."""
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[10:30, 10:30] = 255
    for folder in (tmp_path / split / name for split in ("train", "val") for name in "ab"):
        folder.mkdir(parents=True)
        Image.fromarray(pixels).save(folder / "0.png")
    image, _ = load(f"folder(path='{tmp_path}', shown={share})", 20).test(20)[0]
    assert (image > 127).mean() == pytest.approx(0.25 / share**2, abs=0.02)
    with pytest.raises(ValueError, match=r"shown must be above 0 and at most 1, got 1\.5"):
        load(f"folder(path='{tmp_path}', shown=1.5)")


@pytest.mark.slow
def test_deit3_rope_from_prepared_records(tmp_path, monkeypatch):
    prepared_data = pytest.importorskip("tests.support.prepared_data")
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_data.prepare(tmp_path / "data")))
    data = "--data=tfds(name='wide_photos', on_error='skip')"
    flags = ["--preset=deit3_rope", data, *SMALL, "--batch=6", f"--out={tmp_path / 'run'}"]
    assert vit.main(flags) == 0
    (line,) = [line for line in finished(tmp_path / "run") if "loss" in line]
    assert line["loss"] == pytest.approx(math.log(2), rel=1e-3)  # a head of zeros: every class as likely as not


def stories(path: Path, count: int, ending: str) -> Path:
    """Write short documents as TinyStories has them, as text or as JSON lines."""
    rng = np.random.default_rng(count)
    words = ["once", "there", "was", "a", "little", "cat", "who", "saw", "the", "big", "red", "ball"]
    texts = [" ".join(rng.choice(words, 60)) for _ in range(count)]
    if ending == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        path.write_text("".join(f"{text}\n<|endoftext|>\n" for text in texts))
    return path


def data_flags(folder: Path) -> list[str]:
    """Return how the same stories are given as text and as JSON lines."""
    flags = []
    for ending, kind, separator in (("txt", "file", "separator='<|endoftext|>', "), ("jsonl", "jsonl", "")):
        parts = (("train", 12), ("valid", 3))
        train, valid = (stories(folder / f"{name}.{ending}", count, ending) for name, count in parts)
        flags.append(f"{kind}(path='{train}', {separator}held_out='{valid}', tokenizer='bpe(vocab=300)')")
    return flags


def of_their_lengths(path: Path, first: int, count: int) -> Path:
    """Write texts of the lengths of TinyStories: log-normal, half of them below 720 characters, the longest 2,700."""
    text = "\n".join(read_embedded().values())
    spread = NormalDist(math.log(720), 0.45)
    lengths = [round(math.exp(spread.inv_cdf((at + 0.5) / count))) for at in range(count)]
    ends = [first + sum(lengths[: at + 1]) for at in range(count)]
    parts = [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    path.write_text("\n<|endoftext|>\n".join(parts))
    return path


@pytest.fixture(scope="module")
def their_lengths(tmp_path_factory) -> list[str]:
    """Options of a small model of the recipe, on such texts."""
    folder = tmp_path_factory.mktemp("stories")
    train, held = of_their_lengths(folder / "train.txt", 0, 300), of_their_lengths(folder / "valid.txt", 10**6, 60)
    data = f"file(path='{train}', separator='<|endoftext|>', held_out='{held}', tokenizer='bpe(vocab=2048)')"
    return ["--preset=tinystories", f"--data={data}", "--width=8", "--layers=1", "--heads=2", "--batch=4"]


@pytest.mark.slow
def test_tinystories_trains_on_texts_of_their_lengths(their_lengths):
    corpus = load_text(parse(TextConfig, their_lengths).data)
    tokens = sorted(map(len, corpus.train))
    assert tokens[150] < 512 < tokens[-1] < 1024, "a half is far shorter than two windows, none has a test window"
    task = lm.make_task(parse(TextConfig, their_lengths))
    assert task.notes == ()
    assert "-contiguous," in task.about
    refused = r"^eval_lengths: a held-out document must hold .* 1025 tokens, got .* \(--windows=contiguous reads across"
    with pytest.raises(ValueError, match=refused):
        lm.make_task(parse(TextConfig, [*their_lengths, "--windows=documents"]))


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["contiguous", "documents"])
def test_the_loss_beyond_the_trained_length_is_probed(windows, their_lengths):
    task = lm.make_task(parse(TextConfig, [*their_lengths, f"--windows={windows}", "--eval_lengths=128,256"]))
    losses = task.probe(task.split.init(jax.random.key(0)))
    assert {"loss_0_to_L", "loss_L_to_2L"} <= losses.keys()
    assert task.notes == ()
    assert losses["loss_L_to_2L"] == pytest.approx(math.log(2048), rel=1e-3), "an untrained head is uniform"


@pytest.mark.slow
def test_tinystories_from_a_file_for_one_epoch(tmp_path):
    data, _ = data_flags(tmp_path)
    small = ["--length=16", "--width=16", "--layers=2", "--heads=2", "--batch=8", "--log_every=1", "--probe_every=4"]
    small += ["--eval_lengths", "16", "--devices=1", "--eval_limit=2", f"--out={tmp_path / 'run'}"]
    assert lm.main(["--preset=tinystories", f"--data={data}", *small]) == 0
    lines = finished(tmp_path / "run")
    epochs = [line["epoch"] for line in lines if "loss" in line]
    tokens = sum(map(len, load_text(data, windows="contiguous").train))
    assert epochs == pytest.approx([(step + 1) / len(epochs) for step in range(len(epochs))])
    assert len(epochs) == tokens // (8 * 16)
    assert [line["step"] for line in lines if "entropy/layer_1" in line] == [4]


def test_tinystories_as_json_lines_is_the_same_text(tmp_path):
    corpus, other = map(load_text, data_flags(tmp_path))
    for part in ("train", "held_out"):
        for ours, theirs in zip(getattr(corpus, part), getattr(other, part), strict=True):
            np.testing.assert_array_equal(ours, theirs)
