"""Sampling at many shapes with many extensions, and the measures of what is sampled, beside those of true pictures.

There is one program per shape and extension, which takes noise to pictures. While one samples, a thread compiles the
next. The noise and the classes are the same for every run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float32
from rich.console import Console

from train.data.images import Dataset
from train.data.images.pipeline import training_source
from train.devices.cpu import EVALUATION_COMPILER
from train.devices.flops import TRAINING, dit_flops
from train.devices.hosts import is_main_process
from train.devices.mesh import EVALUATED, batch_sharding, evaluation_execution, put_batch, replicated_sharding
from train.dit import judge
from train.dit.config import Shape, in_words
from train.dit.grid import draw_grid
from train.dit.measures import frechet_distance, loops, repetition
from train.dit.model import Sampler
from train.dit.pictures import Pictures, size_of, spread, true_pictures
from train.dit.results import CLASS, DISTANCE, LOOPS, REPEATS, SampleResults
from train.engine.config import run_folder
from train.engine.numbers import Number, aspect, share
from train.engine.progress import Evaluating
from train.engine.results import key_text, results_stem

LAUNCH = {"cpu": 3e10, "gpu": 2e14, "tpu": 2e14}
"""FLOPs of one launch per device: seconds, after each of which progress is reported."""

TRUE = 2048
"""Most true test pictures of a shape. Of videos there are as many as are sampled."""

SHOWN, VIDEOS_SHOWN = 8, 2
"""Pictures in a row of the figure, and videos, each of which has a row."""

SEED = 20_261_127
"""Random seed of the noise."""


class Pass(NamedTuple):
    """One extension at one shape.

    Attributes:
        extend: the extension.
        shape: height and width, pixels, behind the frames of videos.
        refused: why the encoding does not support the shape; empty = it does.
    """

    extend: str
    shape: Shape
    refused: str


class Truth(NamedTuple):
    """The measures of true pictures of one shape.

    Attributes:
        shown: some of them.
        features: of test pictures.
        top1: accuracy of the judge on them.
        distance: Fréchet distance of training pictures, as many as are sampled, to them.
        repeats: their autocorrelation at the trained side.
        loops: fraction of loops among videos.
    """

    shown: Pictures
    features: Float[np.ndarray, "N F"]
    top1: float
    distance: float
    repeats: float
    loops: float


def evaluate(
    sampler: Sampler, dataset: Dataset, params: Any, *, step: int, mesh: Mesh, console: Console
) -> list[SampleResults]:
    """Sample at every shape of the config with each extension, measure the pictures, and draw some of them.

    The extensions that leave the trained shape as it is share its pictures.

    Args:
        sampler: model of the run.
        dataset: of the true pictures.
        params: trained.
        step: step of the checkpoint, stored with the results.
        mesh: the pictures are sharded over it.
        console: prints to the user.
    """
    config, extensions = sampler.config, tuple(sampler.extended)
    shapes, trained = config.shapes, config.shapes[0]
    shared = next((extend for extend in extensions if extend in sampler.usual), "")
    is_shared = lambda extend, shape: shape == trained and extend in sampler.usual and extend != shared
    passes = [
        Pass(extend, shape, sampler.refusal(extend, shape))
        for shape in shapes
        for extend in extensions
        if not is_shared(extend, shape)
    ]
    judging, truths = judge_truths(sampler, dataset, console)
    numbers: dict[tuple[str, Shape], list[Number]] = {}
    samples: dict[tuple[str, Shape], np.ndarray] = {}
    for pass_, pictures in sample_passes(sampler, dataset, params, passes, mesh, console):
        numbers[pass_.extend, pass_.shape] = measure(pass_, pictures, judging.params, truths[pass_.shape], trained)
        if pictures is not None:
            samples[pass_.extend, pass_.shape] = pictures.images[: VIDEOS_SHOWN if config.frames else SHOWN]
    if is_main_process():
        path = run_folder(config) / f"samples{results_stem(extensions[0]).removeprefix('results')}.png"
        true = {shape: truths[shape].shown.images for shape in shapes}
        draw_grid(path, dataset, trained, true, samples, f"{config.pe}, step {step}")
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    at = lambda extend, shape: numbers[shared if is_shared(extend, shape) else extend, shape]
    made_by = {"data": dataset.identity, "judge": judging.seal, "pictures": f"{config.eval_limit}"}
    made_by |= {name: key_text(getattr(config, name)) for name in SampleResults.sampled_with}
    return [
        SampleResults(
            name=config.pe, data=config.data, trained=trained[0], step=step, extend=extend, note=dataset.note,
            numbers=tuple(number for shape in shapes for number in at(extend, shape)), made_by=made_by,
        )
        for extend in extensions
    ]  # fmt: skip


def judge_truths(sampler: Sampler, dataset: Dataset, console: Console) -> tuple[judge.Judge, Mapping[Shape, Truth]]:
    """Return the judge, trained or read, and the measures of true pictures of every shape."""
    config = sampler.config
    pictures = tuple(dict.fromkeys((shape[-2], shape[-1]) for shape in config.shapes))
    judge_work = sum(map(math.prod, pictures)) * judge.STEPS // len(pictures) * judge.BATCH
    looks = [math.prod(shape) * (true_count(sampler) + config.eval_limit) for shape in config.shapes]
    with Evaluating(console, judge_work + sum(looks)) as progress:
        report = lambda: progress(judge_work / judge.STEPS, "the judge of all runs learns from true pictures, once")
        judging = judge.read(dataset, pictures)
        if judging is None:
            say = lambda text: console.print(text, markup=False, soft_wrap=True)
            for old in sorted(run_folder(config).parent.glob("judge-*.npz"))[:1]:
                say(f"{old} of pejax 0.3.0 is not read, because it has no seal: the judge is trained again")
            judging = judge.train_and_keep(dataset, pictures, report, say)
        truths = {}
        for shape, look in zip(config.shapes, looks, strict=True):
            truths[shape] = truth_of(sampler, dataset, judging.params, shape)
            progress(look, f"true pictures, {in_words(shape)}")
    return judging, truths


def true_count(sampler: Sampler) -> int:
    """Return the most true test pictures, or videos, of a shape."""
    return sampler.config.eval_limit if sampler.config.frames else TRUE


def truth_of(sampler: Sampler, dataset: Dataset, params: judge.Params, shape: Shape) -> Truth:
    """Return the measures of true pictures of one shape."""
    config, side = sampler.config, sampler.config.size
    tested, trained = dataset.test(*size_of(shape)), training_source(dataset, *size_of(shape))
    test = true_pictures(dataset, tested, shape, spread(len(tested), true_count(sampler)))
    reference = true_pictures(dataset, trained, shape, spread(len(trained), config.eval_limit))
    seen = judge.judge(params, test, side)
    distance = frechet_distance(judge.judge(params, reference, side).features, seen.features)
    indices = _first_of_classes(test.labels, VIDEOS_SHOWN if config.frames else SHOWN)
    examples = Pictures(*(array[indices] for array in test))
    top1, repeats = float(seen.right.mean()), repetition(test.images, side)
    return Truth(examples, seen.features, top1, distance, repeats, loop_fraction(test.images, config.shapes[0]))


def loop_fraction(images: Float[np.ndarray, "N *F h w C"], trained: Shape) -> float:
    """Return the fraction of loops among videos longer than the trained ones; NaN of all others, and of pictures."""
    return loops(images, trained[0]) if len(trained) == 3 else math.nan


def _first_of_classes(labels: np.ndarray, most: int) -> list[int]:
    """Return the index of a picture of each of the first classes."""
    indices = {label: index for index, label in reversed([*enumerate(labels.tolist())])}
    return [indices[label] for label in range(most) if label in indices]


def sample_passes(
    sampler: Sampler, dataset: Dataset, params: Any, passes: Sequence[Pass], mesh: Mesh, console: Console
) -> "list[tuple[Pass, Pictures | None]]":
    """Return the pictures of every pass; None where the encoding refuses the shape."""
    count = sampler.config.eval_limit
    possible = [pass_ for pass_ in passes if not pass_.refused]
    pairs: list[tuple[Pass, Pictures | None]] = [(pass_, None) for pass_ in passes if pass_.refused]
    compiler = ThreadPoolExecutor(1)
    try:
        programs = [
            compiler.submit(compile_pass, sampler, params, pass_.extend, pass_.shape, mesh) for pass_ in possible
        ]
        with Evaluating(console, sum(count * picture_flops(sampler, pass_.shape) for pass_ in possible)) as progress:
            for pass_, program in zip(possible, programs, strict=True):
                report = partial(_report, progress, sampler, pass_)
                pairs.append((pass_, sample(sampler, dataset, params, pass_.shape, program, mesh, report)))
    finally:
        compiler.shutdown(wait=False, cancel_futures=True)
    return pairs


def _report(progress: Evaluating, sampler: Sampler, pass_: Pass, pictures: int) -> None:
    extended = "" if pass_.extend == "none" else f" with {pass_.extend}"
    progress(pictures * picture_flops(sampler, pass_.shape), f"sampling {in_words(pass_.shape)}{extended}")


def picture_flops(sampler: Sampler, shape: Shape) -> float:
    """Return the FLOPs of one sampled picture."""
    config = sampler.config
    evaluations = config.sampling_steps * (2 if config.sampler == "heun" else 1) * (1 if config.guidance == 1 else 2)
    return evaluations * dit_flops(sampler.dit, 1, shape) / TRAINING


def chunk_of(sampler: Sampler, shape: Shape, mesh: Mesh) -> int:
    """Return how many pictures are sampled per launch, over all devices."""
    per_device = int(LAUNCH[mesh.devices.flat[0].platform] / picture_flops(sampler, shape))
    return mesh.size * max(1, min(per_device, -(-sampler.config.eval_limit // mesh.size)))


def compile_pass(sampler: Sampler, params: Any, extend: str, shape: Shape, mesh: Mesh) -> Any:
    """Return the compiled program `(params, noise, labels) -> pictures`."""
    execution, rows = evaluation_execution(mesh), batch_sharding(mesh, EVALUATED)
    chunk = chunk_of(sampler, shape, mesh)

    def pictures(params: Any, noise: Array, labels: Array) -> Array:
        return sampler.pictures(params, noise, labels, extend=extend, execution=execution)

    lowered = jax.jit(pictures, out_shardings=replicated_sharding(mesh)).lower(
        params,
        jax.ShapeDtypeStruct((chunk, *shape, sampler.dit.channels), jnp.float32, sharding=rows),
        jax.ShapeDtypeStruct((chunk,), jnp.int32, sharding=rows),
    )
    return lowered.compile(EVALUATION_COMPILER if mesh.devices.flat[0].platform == "cpu" else None)


def sample(
    sampler: Sampler,
    dataset: Dataset,
    params: Any,
    shape: Shape,
    program: Future[Any],
    mesh: Mesh,
    report: Callable[[int], None],
) -> Pictures:
    """Return the pictures of one shape, no darker than black and no lighter than white.

    Args:
        sampler: model of the run.
        dataset: says how pictures are normalized.
        params: trained.
        shape: height and width, pixels, behind the frames of videos.
        program: the program of the pass.
        mesh: the pictures are sharded over it.
        report: called with the number of pictures after each launch.
    """
    count, chunk = sampler.config.eval_limit, chunk_of(sampler, shape, mesh)
    mean, std = (np.asarray(values, np.float32) for values in (dataset.mean, dataset.std))
    labels, chunks = balanced_labels(count, sampler.dit.classes), []
    for begin in range(0, count, chunk):
        noise = noise_of(range(begin, begin + chunk), (*shape, sampler.dit.channels))
        chunk_labels = np.resize(labels[begin : begin + chunk], chunk)
        pictures = np.asarray(program.result()(params, *put_batch((noise, chunk_labels), mesh, axes=EVALUATED)))
        chunks.append(np.clip(pictures, -mean / std, (1 - mean) / std))
        report(min(chunk, count - begin))
    return Pictures(np.concatenate(chunks)[:count], labels)


def balanced_labels(count: int, classes: int) -> np.ndarray:
    """Return the classes of the pictures to sample, each as often as any other, up to one."""
    return (np.arange(count) % classes).astype(np.int32)


def noise_of(indices: range, shape: tuple[int, ...]) -> Float32[np.ndarray, "N *shape"]:
    """Return the noise of pictures by their indices, the same for every run."""
    return np.stack([np.random.default_rng((SEED, index, 1)).standard_normal(shape, np.float32) for index in indices])


def measure(pass_: Pass, pictures: Pictures | None, params: judge.Params, truth: Truth, trained: Shape) -> list[Number]:
    """Return the measures of the pictures of a pass, beside those of true ones; without pictures, why it is refused."""
    of, true = aspect(pass_.shape, trained), 100 * truth.top1
    values, right = {}, Number(measure=CLASS, at=pass_.shape, of=of, beside=true, refused=pass_.refused)
    if pictures is not None:
        seen = judge.judge(params, pictures, trained[-1])
        right = share(CLASS, pass_.shape, seen.right, of, true)
        values[DISTANCE] = frechet_distance(seen.features, truth.features)
        values[REPEATS] = repetition(pictures.images, trained[-1])
        values[LOOPS] = 100 * loop_fraction(pictures.images, trained)
    truths = {DISTANCE: truth.distance, REPEATS: truth.repeats, LOOPS: 100 * truth.loops}
    numbers = [
        Number(
            measure=name, at=pass_.shape, of=of, value=values.get(name, math.nan), beside=number, refused=pass_.refused
        )
        for name, number in truths.items()
    ]
    return [right, *(number for number in numbers if number.known or not math.isnan(number.beside))]
