"""The diffusion trainer: laws of the flow and of the measures, and its command line from training to the figure."""

import dataclasses
import json
import math
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from benchmarks import sampled
from tests.support.cases import slow
from tests.support.cli import assert_bad_options, assert_resumes, outcome, programs_on_disk, refused
from train.compare import options
from train.data.images import Dataset, Images
from train.data.images.pipeline import training_source
from train.dit import judge
from train.dit import program as diffusion
from train.dit.config import Config, parse_shapes
from train.dit.evaluate import balanced_labels, noise_of
from train.dit.flow import draw_times, flow_losses, guide, noisy, sample
from train.dit.measures import area_weights, frechet_distance, repetition
from train.dit.model import Sampler
from train.dit.pictures import average_areas, spread
from train.dit.results import CLASS, DISTANCE, LOOPS, REPEATS, SampleResults
from train.engine.loop import init_state
from train.engine.numbers import Number, aspect, share_of
from train.engine.parser import parse
from train.engine.stored_config import save_config
from train.engine.update import Recipe, Weights, updated_weights
from train.evaluate import program as evaluate
from train.report import program as report

TINY = (
    "--size=8", "--width=16", "--layers=1", "--heads=2", "--steps=6", "--warmup=2", "--batch=16", "--log_every=2",
    "--checkpoint_every=3", "--eval_limit=24", "--eval_shapes=12,8x16", "--sampling_steps=2", "--extend=none,pi",
    "--ema=0.5", "--devices=1",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled_once_and_in_a_hurry(tmp_path_factory):
    with programs_on_disk(tmp_path_factory.mktemp("compiled"), jax_disable_most_optimizations=True):
        yield


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """The folder of the judges, in place of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "cache_file", lambda name: folder / name)
        yield folder


@pytest.fixture(autouse=True)
def a_short_judge(monkeypatch):
    monkeypatch.setattr(judge, "STEPS", 6)


def train(out: Path, *flags: str) -> int:
    return diffusion.main([*TINY, f"--out={out}", *flags])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory, cache) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "STEPS", 6)
        assert train(out, "--pe=rope_axial") == 0
    return out


def measures(results: SampleResults) -> list[list[Number]]:
    """Return the numbers of each measure."""
    return [
        [number for number in results.numbers if number.measure == name] for name in (CLASS, DISTANCE, REPEATS, LOOPS)
    ]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_the_exact_velocity_has_no_loss_and_another_one_its_square():
    x, noise = draw(3, 4, 4, 1), draw(3, 4, 4, 1, seed=1)
    np.testing.assert_array_equal(flow_losses(noise - x, x, noise), 0.0)
    np.testing.assert_allclose(flow_losses(noise - x + 2.0, x, noise), 4.0, rtol=1e-5)


@pytest.mark.slow
def test_a_path_leads_from_the_picture_to_the_noise_at_that_velocity():
    x, noise = draw(2, 4, 4, 1), draw(2, 4, 4, 1, seed=1)
    np.testing.assert_array_equal(noisy(x, noise, jnp.zeros(2)), x)
    np.testing.assert_array_equal(noisy(x, noise, jnp.ones(2)), noise)
    _, slope = jax.jvp(lambda t: noisy(x, noise, t), (jnp.array([0.3, 0.6]),), (jnp.ones(2),))
    np.testing.assert_allclose(slope, noise - x, atol=1e-6)


@pytest.mark.slow
def test_times():
    uniform, logit_normal = (
        np.asarray(draw_times(jax.random.key(0), 4000, kind)) for kind in ("uniform", "logit_normal")
    )
    assert abs(uniform.std() - 12**-0.5) < 0.01
    logits = np.log(logit_normal / (1 - logit_normal))
    assert abs(logits.mean()) < 0.05
    assert abs(logits.std() - 1) < 0.05


@pytest.mark.parametrize("method", ["euler", slow("heun")])
def test_a_straight_flow_ends_exactly_at_the_picture(method):
    """Along `x_t` the velocity `ε - x` is `(x_t - x) / t`, whatever the noise."""
    picture, noise = draw(2, 3, 3, 1), draw(2, 3, 3, 1, seed=1)
    by_t = lambda x, t: (x - picture) / jnp.maximum(t, 1e-6).reshape(-1, 1, 1, 1)
    if method == "euler":
        np.testing.assert_allclose(sample(by_t, noise, 7, method), picture, atol=1e-5)
    linear = lambda x, t: jnp.broadcast_to(3 + 4 * t.reshape(-1, 1, 1, 1), x.shape)  # its integral over t is 5
    ends = {"euler": noise - 5 - 4 / 2 / 8, "heun": noise - 5}
    np.testing.assert_allclose(sample(linear, noise, 8, method), ends[method], atol=1e-5)


@pytest.mark.slow
def test_heun_is_of_second_order():
    grow = lambda x, t: x
    errors = [abs(float(sample(grow, jnp.ones((1, 1)), steps, "heun")[0, 0]) - math.exp(-1)) for steps in (8, 16)]
    assert 3.5 < errors[0] / errors[1] < 4.6


@pytest.mark.slow
def test_guidance_of_scale_one_is_the_conditional_model_and_two_goes_as_far_again():
    velocity = lambda x, t, labels: x * labels.astype(jnp.float32)[:, None] + t[:, None]
    x, t, labels = draw(3, 2), jnp.array([0.1, 0.5, 0.9]), jnp.array([0, 1, 2])
    np.testing.assert_array_equal(guide(velocity, labels, 5, 1.0)(x, t), velocity(x, t, labels))
    scale_0, scale_1 = velocity(x, t, jnp.full((3,), 5)), velocity(x, t, labels)
    np.testing.assert_allclose(guide(velocity, labels, 5, 2.0)(x, t), 2 * scale_1 - scale_0, atol=1e-5)
    np.testing.assert_allclose(guide(velocity, labels, 5, 0.0)(x, t), scale_0, atol=1e-6)


@pytest.mark.slow
def test_the_average_of_the_weights_is_their_exponential_mean():
    import optax

    recipe = Recipe(optax.sgd(0.1), ("loss", "count"), average=0.75)
    state = init_state({"w": jnp.array([1.0])}, recipe)
    weights = Weights(state.params, state.opt, state.average)
    expected = 1.0
    for _ in range(3):
        weights = updated_weights(recipe, {"w": jnp.array([1.0])}, jnp.array(1.0), weights)
        expected = 0.75 * expected + 0.25 * float(weights.params["w"][0])
    np.testing.assert_allclose(weights.average["w"], [expected], rtol=1e-6)


def test_the_distance_of_gaussians_in_closed_form():
    """Diagonal covariances a², b² and means m apart: `|m|² + Σ (a - b)²`."""
    rng = np.random.default_rng(0)
    white = rng.normal(size=(50, 3))
    white = (white - white.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(white, rowvar=False))).T
    a, b, shift = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 0.5]), np.array([0.0, 3.0, 4.0])
    np.testing.assert_allclose(frechet_distance(white * a, white * b + shift), 25 + np.sum((a - b) ** 2), rtol=1e-9)
    assert frechet_distance(white, white) < 1e-9
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    moved = [frechet_distance(white * a @ matrix, (white * b + shift) @ matrix) for matrix in (np.eye(3), turn)]
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-9)
    with pytest.raises(ValueError, match="at least two samples, got 1 and 50"):
        frechet_distance(white[:1], white)


def test_a_tiled_picture_repeats_itself_and_noise_does_not():
    tile = draw(4, 8, 8, 1)
    assert repetition(np.tile(tile, (1, 2, 2, 1)), 8) == pytest.approx(1.0)
    assert repetition(np.tile(tile, (1, 1, 2, 1)), 8) == pytest.approx(1.0)
    assert repetition(np.concatenate([tile, 3 - 2 * tile], axis=2), 8) == pytest.approx(-1.0)
    assert abs(repetition(draw(400, 8, 16, 1), 8)) < 0.02
    assert repetition(np.ones((2, 8, 16, 1), np.float32), 8) == 0.0
    assert math.isnan(repetition(tile, 8))


def test_averages_over_areas():
    np.testing.assert_allclose(area_weights(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(area_weights(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], rtol=1e-6)
    np.testing.assert_allclose(area_weights(11, 7).sum(1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(area_weights(5, 5), np.eye(5))
    images = draw(2, 6, 6, 1)
    np.testing.assert_allclose(average_areas(images, (3, 6)), images.reshape(2, 3, 2, 6, 1).mean(2), atol=1e-6)
    np.testing.assert_allclose(average_areas(images, (6, 3)), images.reshape(2, 6, 3, 2, 1).mean(3), atol=1e-6)
    videos = draw(2, 5, 6, 6, 1)
    np.testing.assert_allclose(average_areas(videos, (5, 3, 6))[:, 4], average_areas(videos[:, 4], (3, 6)), atol=1e-6)


def test_classes_are_wanted_equally_often_and_the_noise_of_a_picture_is_its_own():
    assert np.ptp(np.bincount(balanced_labels(256, 34))) <= 1
    np.testing.assert_array_equal(noise_of(range(2, 4), (4, 8, 1)), noise_of(range(5), (4, 8, 1))[2:4])
    assert sorted(spread(10, 10)) == [*range(10)]
    assert len(set(spread(1000, 100) // 100)) == 10
    np.testing.assert_array_equal(noise_of(range(3), (5, 4, 8, 1))[:, :2], noise_of(range(3), (2, 4, 8, 1)))


def small_data() -> Dataset:
    """Two classes: the upper or the lower half is bright."""
    images = np.zeros((64, 8, 8, 1), np.uint8)
    images[::2, :4], images[1::2, 4:] = 200, 200
    source = Images(images, np.arange(64) % 2)
    return Dataset(
        train=source, test=source.at_size, classes=("up", "down"), channels=1, size=8, mean=(0.4,), std=(0.4,),
        mirror=False, note="halves", identity="halves", train_at=source.at_size,
    )  # fmt: skip


@pytest.mark.slow
def test_the_judge_learns_all_shapes(monkeypatch):
    monkeypatch.setattr(judge, "STEPS", 40)
    dataset, shapes, calls = small_data(), ((8, 8), (12, 12), (8, 16)), []
    params = judge.train(dataset, shapes, lambda: calls.append(1))
    assert len(calls) == 40
    for shape in shapes:
        pictures = judge.true_pictures(dataset, training_source(dataset, max(shape)), shape, np.arange(64))
        assert pictures.images.shape == (64, *shape, 1)
        seen = judge.judge(params, pictures, 8)
        assert seen.right.sum() == 64
        assert seen.features.shape == (64, judge.FEATURES)


def test_a_judge_is_kept_and_never_believed_without_its_seal(tmp_path, monkeypatch):
    """Its file belongs to the data, the shapes and the training; its seal to its name and its weights."""
    dataset, shapes, said = small_data(), ((8, 8), (8, 16)), []
    monkeypatch.setattr(judge, "train", lambda *args: judge.init(jax.random.key(1), 1, 2, 8))
    monkeypatch.setattr(judge, "cache_file", lambda name: tmp_path / name)
    assert judge.read(dataset, shapes) is None
    new_judge = judge.train_and_keep(dataset, shapes, lambda: None, said.append)
    chex.assert_trees_all_equal(judge.read(dataset, shapes), new_judge)
    names = [judge.name_of(dataset, shapes), judge.name_of(dataset, shapes[:1])]
    monkeypatch.setattr(judge, "STEPS", 7)
    names.append(judge.name_of(dataset, shapes))
    monkeypatch.undo()
    names.append(judge.name_of(dataclasses.replace(dataset, identity="other"), shapes))
    assert len({*names}) == 4
    content = (tmp_path / names[0]).read_bytes()
    zeros = content[:32] + bytes(len(content) - 32)
    for wrong, name in ((zeros, names[0]), (content[:-4], names[0]), (b"", names[0]), (content, names[1])):
        assert judge.unpack(wrong, name, new_judge.params) is None
    other = judge.seal({**new_judge.params, "logits_bias": jnp.ones(2)}, names[0])
    assert len({new_judge.seal, other.seal, judge.seal(new_judge.params, names[1]).seal}) == 3
    assert not said


def test_a_run_goes_on_where_its_judge_cannot_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    said = []
    monkeypatch.setattr(judge, "train", lambda *args: judge.init(jax.random.key(1), 1, 2, 8))
    monkeypatch.setattr(judge, "cache_file", lambda name: tmp_path / "file" / name)
    assert judge.train_and_keep(small_data(), ((8, 8),), lambda: None, said.append).seal
    assert "the judge of pictures is not kept, the next run trains it again" in said[0]


def test_numbers_of_other_judges_and_samplings_are_not_in_one_table(tmp_path):
    numbers = (share_of(CLASS, (8, 8), 7, 8), Number(measure=DISTANCE, at=(8, 8), value=1.5))
    made_by = {"data": "glyphs-1", "judge": "ab", "guidance": "2"}
    results, other, old = (
        SampleResults("learned", "glyphs", 8, 1, "none", "note", numbers, made_by=key)
        for key in (made_by, {**made_by, "judge": "cd"}, {})
    )
    with pytest.raises(ValueError, match="made by the same judge, got ab and cd: train"):
        SampleResults.markdown([results, other])
    with pytest.raises(ValueError, match="the same data, got glyphs-1 and an unknown one"):
        SampleResults.draw([results, old], tmp_path / "both.png")
    results.store(tmp_path)
    assert SampleResults.load(tmp_path / "results.json").made_by == made_by
    save_config(Config(guidance=3.0), tmp_path)
    with pytest.raises(ValueError, match=r"measured with guidance=2, the config\.json beside it has 3"):
        SampleResults.load(tmp_path / "results.json")


@pytest.mark.slow
def test_a_run_leaves_everything_behind(finished_run, cache):
    metrics, stored = outcome(finished_run)
    assert [line["step"] for line in metrics] == [2, 4, 6]
    right, distances, repeats, loops = measures(SampleResults.load(finished_run / "results.json"))
    assert [(number.at, number.of) for number in right] == [((8, 8), ""), ((12, 12), ""), ((8, 16), "1 x 2")]
    assert {number.count for number in right} == {24}
    assert [number.at for number in repeats] == [(12, 12), (8, 16)]
    assert all(-1 <= number.value <= 1 for number in repeats)
    assert all(number.value > 0 and number.beside > 0 for number in distances)
    assert len(distances) == 3
    assert not loops
    names = {path.name for path in finished_run.iterdir()}
    assert {"results-pi.json", "results.png", "samples.png", "config.json"} <= names
    seals = {path.read_bytes()[:8].hex() for path in cache.glob("judge-*")}
    key = json.loads(stored)["made_by"]
    assert key.pop("judge") in seals
    assert key.pop("data").startswith("glyphs-")
    assert key == {"pictures": "24", "guidance": "2", "sampler": "euler", "sampling_steps": "2"}
    extended, plain = (SampleResults.load(finished_run / f"{name}.json").numbers for name in ("results-pi", "results"))
    assert extended[:2] == plain[:2]


@pytest.mark.slow
def test_stop_and_resume_change_no_bit(finished_run, tmp_path):
    """The moving average of the weights is resumed, too: it is what samples."""
    assert_resumes(train, finished_run, tmp_path / "run", "--pe=rope_axial", "--stop_at=4")


@pytest.mark.slow
def test_evaluating_again_and_side_by_side(finished_run, tmp_path, capsys):
    before = (finished_run / "results.json").read_text()
    assert evaluate.main([str(finished_run)]) == 0
    assert (finished_run / "results.json").read_text() == before
    said = capsys.readouterr().out
    assert "sampled pictures, rope_axial, glyphs, trained at 8 px" in said
    assert evaluate.main([str(finished_run), "--extend=ntk", "--eval_shapes=16"]) == 0
    assert (finished_run / "samples-ntk.png").stat().st_size > 1000
    assert evaluate.main(["--compare", str(finished_run), "--extend=pi", f"--to={tmp_path / 'both'}"]) == 0
    table = (tmp_path / "both.md").read_text()
    assert "class right, %, by the height of pictures of 1 x 2:" in table
    assert "| rope_axial + pi |" in table


@pytest.mark.slow
def test_a_report_and_a_comparison_know_it(finished_run, tmp_path):
    assert report.main([str(finished_run.parent), "-o", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "Sampled pictures: glyphs, trained at 8 px" in text
    assert "class right at 1 x 2, %" in text
    assert "entropy" in text
    comparison = options.read(["--task=dit", "--pe=alibi,learned", "--extend=none,pi", *TINY[:4]])
    assert comparison.config(comparison.candidates["alibi"][0], 1, tmp_path).program == "dit"


@pytest.mark.slow
def test_two_devices_train_as_one(finished_run, tmp_path):
    assert train(tmp_path / "run", "--pe=rope_axial", "--devices=2") == 0
    expected, loss = (
        json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
        for out in (finished_run, tmp_path / "run")
    )
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_model_of_another_size_starts_from_a_run(finished_run, tmp_path, capsys):
    options = (f"--init={finished_run}", "--size=12", "--stop_at=1")
    assert train(tmp_path / "more", "--pe=rope_axial", *options, "--eval_shapes=8") == 0
    assert f"starting from step 6 of {finished_run}, trained at 8 px" in capsys.readouterr().out


@pytest.mark.slow
def test_data_without_their_size_in_memory(tmp_path):
    """Training images in files are central squares, for the judge."""
    dataset = small_data()
    in_files = Dataset(**{**vars(dataset), "train_at": None})
    image, label = training_source(in_files, 16)[1]
    assert image.shape == (16, 16, 1)
    assert label == 1


def test_aspect_ratios_and_sizes_of_frames_are_parts_of_the_results():
    shapes = ((28, 28), (28, 56), (84, 56), (16, 28, 28), (16, 28, 56))
    assert [aspect(shape, (8, 28, 28)) for shape in shapes] == ["", "1 x 2", "3 x 2", "", "28 x 56"]


def test_shapes():
    assert parse_shapes("28, 42,28x56, 56 x 28") == ((28, 28), (42, 42), (28, 56), (56, 28))
    assert Config().shapes == ((28, 28), (44, 44), (56, 56), (28, 56))
    assert parse(Config, ["--eval_shapes=56,28"]).shapes == ((28, 28), (56, 56))
    assert parse_shapes("8x28x28, 16 x 28 x 56", videos=True) == ((8, 28, 28), (16, 28, 56))
    assert parse(Config, ["--frames=8"]).shapes == ((8, 28, 28), (16, 28, 28))
    assert parse(Config, ["--frames=8", "--eval_shapes=4x28x28"]).shapes == ((8, 28, 28), (4, 28, 28))


@pytest.mark.slow
def test_only_extensions_that_an_encoding_has():
    config = parse(Config, ["--size=8", "--width=16", "--heads=2"])
    assert [*Sampler(config, 1, 3).extended] == ["none", "pi", "ntk", "yarn", "by_step(above='linear')"]
    config = parse(Config, ["--size=8", "--width=16", "--heads=2", "--pe=alibi"])
    assert [*Sampler(config, 1, 3).extended] == ["none", "pi"]


@pytest.mark.slow
def test_an_extension_by_step_reads_the_time_of_the_flow():
    chosen = "--extend=none,linear,by_step(above='linear')"
    sampler = Sampler(parse(Config, ["--size=8", "--width=16", "--heads=2", chosen]), 1, 3)
    leaves, tree = jax.tree.flatten(sampler.init(jax.random.key(0)))
    noisy_leaf = lambda seed, leaf: leaf + 0.3 * jax.random.normal(jax.random.key(seed), leaf.shape)
    params = jax.tree.unflatten(tree, [noisy_leaf(*pair) for pair in enumerate(leaves)])
    x, labels = jnp.asarray(draw(2, 16, 16, 1)), jnp.zeros(2, jnp.int32)
    none, linear, by_step = (
        [sampler.velocity(params, x, jnp.full(2, at), labels, extend=extend) for at in (0.0, 0.5, 1.0)]
        for extend in sampler.extended
    )
    chex.assert_trees_all_close((by_step[0], by_step[2]), (none[0], linear[2]), atol=1e-5)
    assert min(float(jnp.abs(by_step[1] - end[1]).max()) for end in (none, linear)) > 1e-3


@pytest.mark.slow
def test_a_figure_of_what_runs_sample(finished_run, tmp_path, capsys):
    out = tmp_path / "all.png"
    assert sampled.main([str(finished_run), "--shape=8x16", f"--out={out}"]) == 0
    assert plt.imread(out).shape[0] > 6 * 16  # a true row, and one for each of five extensions
    assert "multiples of the patch, 4, got 9" in refused(capsys, lambda: sampled.main([str(finished_run), "--shape=9"]))
    assert str(tmp_path) in refused(capsys, lambda: sampled.main([str(tmp_path)]))


@pytest.mark.slow
def test_rows_of_refused_shapes_and_of_one_measure(tmp_path):
    numbers = (
        share_of(CLASS, (8, 8), 7, 8), Number(measure=DISTANCE, at=(8, 8), value=1.5),
        Number(measure=CLASS, at=(8, 16), of="1 x 2", refused="too wide"), share_of(CLASS, (16, 16), 4, 8),
        Number(measure=DISTANCE, at=(16, 16), value=2.5), Number(measure=REPEATS, at=(16, 16), value=0.3),
    )  # fmt: skip
    results = SampleResults("learned", "glyphs", 8, 1, "none", "note", numbers)
    results.save(tmp_path)
    assert SampleResults.load(tmp_path / "results.json") == results
    assert results.scores == {"class right, %": {8: 87.5, 16: 50.0}, "class right at 1 x 2, %": {}}
    SampleResults.compare([tmp_path / "results.json"], tmp_path / "one")
    text = (tmp_path / "one.md").read_text()
    assert "| learned | **87.5** | **50.0** |" in text
    assert "| learned |  | **0.30** |" in text


BAD = {
    "--pe=rop": "did you mean 'rope'?",
    "--preset=demos": "preset must be one of demo, gpu, video, got 'demos'",
    "--frames=-1": "frames must not be negative, got -1",
    "--frames=8 --eval_shapes=8x8x8 --width=24": "frames must be 0 with glyphs, which are pictures, got 8; videos: ",
    "--data=moving_glyphs": "frames must be at least 1 with moving_glyphs, which are videos",
    "--eval_shapes=16x8x8": "eval_shapes must be sides, or heights x widths, such as 28,42,28x56, got '16x8x8'",
    "--frames=8 --eval_shapes=12": "eval_shapes of videos must be frames x height x width, such as 8x28x28,16x28x28",
    "--frames=8 --eval_shapes=8x8x10": "image sizes must be multiples of the patch, 4, got 10",
    "--times=normal": "times must be one of logit_normal, uniform, got 'normal'",
    "--sampler=ddim": "sampler must be one of euler, heun, got 'ddim'",
    "--class_dropout=0": "guidance must be 1 with class_dropout=0",
    "--class_dropout=1": "class_dropout must be from 0 to below 1, got 1.0",
    "--eval_limit=0": "eval_limit must be at least 2",
    "--eval_shapes=8,10": "image sizes must be multiples of the patch, 4, got 10",
    "--eval_shapes=8x": "eval_shapes must be sides, or heights x widths, such as 28,42,28x56, got '8x'",
    "--extend=pi,pi": "extend must name each once, got 'pi,pi'",
    "--pe=learned --extend=ntk": "learned has no extension 'ntk'",
    "--batch=20000": "batch must be at most the 10000 training images, got 20000",
    "--sampling_steps=0": "sampling_steps must be at least 1, got 0",
}


COSTLY = ("--pe=learned --extend=ntk", "--batch=20000")
"""Flags that are refused once the data are drawn."""


@pytest.mark.parametrize("flag", [slow(flag) if flag in COSTLY else flag for flag in BAD])
def test_bad_flags_are_one_line(flag, tmp_path, capsys):
    assert_bad_options(capsys, train, tmp_path / "run", flag, BAD[flag])


MOVING = (
    "--frames=2",
    "--data=moving_glyphs",
    "--pe=rope_axial",
    "--width=24",
    "--eval_shapes=4x8x8,2x8x12",
    "--extend=",
)


@pytest.fixture(scope="module")
def videos(tmp_path_factory, cache) -> Path:
    """A run on videos."""
    out = tmp_path_factory.mktemp("videos") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "STEPS", 6)
        assert train(out, *MOVING) == 0
    return out


@pytest.mark.slow
def test_a_run_on_videos_leaves_everything_behind(videos):
    loaded = map(SampleResults.load, videos.glob("results*.json"))
    evaluations = {evaluation.extend: evaluation for evaluation in loaded}
    assert evaluations.keys() == {"none", "pi", "yarn", "riflex(axis=0)"}
    assert {evaluation.trained for evaluation in evaluations.values()} == {2}
    right, distances, repeats, loops = measures(evaluations["none"])
    assert [(number.at, number.of) for number in right] == [((2, 8, 8), ""), ((4, 8, 8), ""), ((2, 8, 12), "8 x 12")]
    assert {number.count for number in right} == {24}
    assert [number.at for number in loops] == [(4, 8, 8)]
    assert 0 <= loops[0].beside <= 100
    assert [number.at for number in repeats] == [(2, 8, 12)]
    assert all(number.value > 0 and number.beside > 0 for number in distances)
    assert all(evaluation.numbers[:2] == evaluations["none"].numbers[:2] for evaluation in evaluations.values()), (
        "the trained shape is shared"
    )
    assert (videos / "samples.png").stat().st_size > 1000
    assert json.loads((videos / "metrics.jsonl").read_text().splitlines()[-1])["videos_per_second"] > 0


@pytest.mark.slow
def test_videos_stop_and_resume(videos, tmp_path):
    assert_resumes(lambda out, *flags: train(out, *MOVING, *flags), videos, tmp_path / "run", "--stop_at=4")


@pytest.mark.slow
def test_everything_that_reads_runs_knows_videos(videos, tmp_path, capsys):
    assert evaluate.main([str(videos)]) == 0
    said = capsys.readouterr().out
    assert "sampled videos, rope_axial, moving_glyphs, trained at 2 frames" in said
    assert "loops, %" in said
    assert evaluate.main(["--compare", str(videos), "--extend=pi", f"--to={tmp_path / 'both'}"]) == 0
    table = (tmp_path / "both.md").read_text()
    assert "class right, %, by the number of frames of 8 x 8:" in table
    assert "loops, %, by the number of frames of 8 x 8:" in table
    assert report.main([str(videos.parent), "-o", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "Sampled videos: moving_glyphs, trained at 2 frames" in text
    assert "length of the video" in text
    assert "entropy" in text
    chosen = ["--task=dit", "--pe=alibi,learned", "--extend=none,pi", "--frames=2", "--data=moving_glyphs", *TINY[:4]]
    comparison = options.read(chosen)
    assert comparison.config(comparison.candidates["alibi"][0], 1, tmp_path).frames == 2


def test_scores_of_videos_are_by_the_number_of_frames():
    shapes = {(2, 8, 8): (7, ""), (4, 8, 8): (4, ""), (2, 8, 12): (2, "8 x 12")}
    numbers = tuple(share_of(CLASS, shape, right, 8, of=of) for shape, (right, of) in shapes.items())
    results = SampleResults("alibi", "moving_glyphs", 2, 1, "none", "note", numbers)
    assert results.scores == {"class right, %": {2: 87.5, 4: 50.0}, "class right at 8 x 12, %": {2: 25.0}}


@pytest.mark.slow
def test_the_class_of_a_video_is_that_of_the_mean_of_its_logits(monkeypatch):
    """One of three frames is sure of the other class; the mean decides, and features are those of every frame."""
    logits = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 9.0], [0.0, 1.0], [0.0, 1.0], [1.5, 0.0]], np.float32)
    monkeypatch.setattr(judge, "_judged", lambda params, images, side: (np.pad(logits, ((0, 250), (0, 0))), images))
    seen = judge.judge({}, judge.Pictures(np.zeros((2, 3, 4, 4, 1), np.float32), np.array([1, 1])), 4)
    assert seen.right.sum() == 2
    assert len(seen.features) == 6


def test_evaluation_refuses_what_the_program_does_not_have(capsys, tmp_path):
    save_config(Config(out=str(tmp_path)), tmp_path)
    error = refused(capsys, lambda: evaluate.main([str(tmp_path), "--eval_sizes", "28"]))
    assert "runs of train.dit have no eval_sizes" in error
