"""Whole training steps, ours and torch's of the same shape: a GPT and a vision transformer, AdamW, compile time too."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from benchmarks import peers_steps
from benchmarks.apart import apart
from benchmarks.operands import DTYPES, Sizes
from benchmarks.report import Case, Column, Part, Settings, column_of
from benchmarks.timing import Call, Maker, Say, side_by_side
from pejax import models
from pejax.models import Decoder, ViT
from train.devices.mesh import make_mesh, put_batch, training_execution
from train.engine.loop import Metrics, init_state, make_step, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.task import Split
from train.engine.update import Recipe
from train.lm.config import Config

OURS, UNSPLIT = "pejax", "pejax, one device"

SETTLING = 8
"""Calls after the first two: a ViT's step was seen to ask the kernel for memory up to the eighth, and then to take half
as long again, when all threads had one arena of malloc."""

IN_A_ROW = 1
"""Steps of a way right before each that is timed: steps follow each other in training. A ViT's in bfloat16 was seen to
take twice as long after the others' turns as after its own; its temporaries come from the kernel anew."""


PATCH, CHANNELS = 16, 3

GPT = Sizes(layers=6, width=384, heads=6, batch=8, length=256, vocab=4096)
VIT = Sizes(layers=12, width=384, heads=6, batch=8, length=224, vocab=1000)
TOY_GPT = Sizes(layers=1, width=16, heads=2, batch=2, length=8, vocab=16)
TOY_VIT = Sizes(layers=1, width=16, heads=2, batch=2, length=32, vocab=4)


def gpt(sizes: Sizes, pe: str, dtype: str) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return how to draw our decoder."""
    config = models.decoder(
        vocab=sizes.vocab, length=sizes.length, width=sizes.width, layers=sizes.layers, heads=sizes.heads, pe=pe,
        style="gpt2", dtype=dtype,
    )  # fmt: skip
    return lambda rngs: Decoder(config, rngs=rngs)


def vit(sizes: Sizes, pe: str, dtype: str) -> Callable[[nnx.Rngs], nnx.Module]:
    """Return how to draw our vision transformer."""
    config = models.vit(
        image_size=sizes.length, patch=PATCH, channels=CHANNELS, classes=sizes.vocab, width=sizes.width,
        layers=sizes.layers, heads=sizes.heads, pe=pe, dtype=dtype,
    )  # fmt: skip
    return lambda rngs: ViT(config, rngs=rngs)


def gpt_batch(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens, and the token after each."""
    ids = np.random.default_rng(0).integers(0, sizes.vocab, (sizes.batch, sizes.length + 1), np.int32)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def vit_batch(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Return images, channels last, and their classes."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((sizes.batch, sizes.length, sizes.length, CHANNELS), np.float32)
    return images, rng.integers(0, sizes.vocab, sizes.batch, np.int32)


def parameters(make: Callable[[nnx.Rngs], nnx.Module]) -> int:
    """Return how many parameters a model has."""
    return sum(leaf.size for leaf in jax.tree.leaves(Split(make).shapes))


def ours(make: Callable[[nnx.Rngs], nnx.Module], batch: tuple[np.ndarray, np.ndarray], devices: int = 0) -> Call:
    """Return the step of the trainers: their loop, optimizer and mesh; every call goes on from the last."""
    mesh = make_mesh(devices, batch=len(batch[0]))
    execution = training_execution(mesh)
    split, named = Split(make), dict(zip(("inputs", "labels"), batch, strict=True))

    def loss(params: Any, batch: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        del key
        logits = split.model(params)(batch["inputs"], execution=execution)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return jnp.mean(losses), {"loss": jnp.sum(losses), "count": jnp.float32(losses.size)}

    recipe = Recipe(make_optimizer(Config(), steps=1000, warmup=10)[0], ("loss", "count"))
    shardings = state_shardings(split, recipe, mesh)
    step = make_step(loss, recipe, shardings, mesh)
    states = [jax.device_put(init_state(split.init(jax.random.key(0)), recipe), shardings)]
    put = put_batch(named, mesh)

    def call() -> Array:
        states.append(step(states.pop(), put))
        return jax.block_until_ready(states[0]).sums["loss"]

    return call


def ways(model: str, pe: str, dtype: str, toy: bool) -> dict[str, Maker]:
    """Return the ways of a step: ours with a device for each core and with one device, and the peers'."""
    theirs: dict[str, Maker] = {}
    if model == "GPT":
        sizes = TOY_GPT if toy else GPT
        make, batch = gpt(sizes, pe, dtype), gpt_batch(sizes)
        if not toy:
            theirs = peers_steps.gpt(sizes, batch, pe, dtype)
    else:
        sizes = TOY_VIT if toy else VIT
        make, batch = vit(sizes, pe, dtype), vit_batch(sizes)
        if not toy:
            theirs = peers_steps.vit(sizes, batch, PATCH, dtype)
    return {OURS: functools.partial(ours, make, batch), UNSPLIT: functools.partial(ours, make, batch, 1), **theirs}


def measure(model: str, pe: str, dtype: str, settings: Settings, say: Say) -> Column:
    """Time the steps beside each other, each in a process of its own; first calls too."""
    chosen = [model, pe, dtype, settings.toy]
    makers = {way: apart("benchmarks.steps", "ways", chosen, way) for way in ways(model, pe, dtype, settings.toy)}
    more, before = (0, 0) if settings.toy else (SETTLING, IN_A_ROW)
    return column_of(side_by_side(makers, settings.rounds, say, more, before), first_calls=True)


def cases(settings: Settings) -> list[Case]:
    """Return one table for each model, its columns positions and types."""
    found = []
    for model, weight in (("GPT", 120), ("ViT", 150)):
        for dtype in DTYPES[:1] if settings.toy else DTYPES:
            for pe in ("learned", "alibi") if model == "GPT" and not settings.toy else ("learned",):
                measured = functools.partial(measure, model, pe, dtype, settings)
                column = f"{pe}, {dtype}" if model == "GPT" else dtype
                found.append(Case(f"{model}, one training step", column, measured, weight))
    return found


PART = Part(
    "Training steps",
    "GPT: 6 layers of 384, 6 heads, 8 windows of 256 tokens, vocabulary 4,096. ViT-S/16: 12 layers of 384, 6 "
    "heads, 8 images of 224 x 224. The same layers, positions, loss and AdamW on both sides, no clipping, batches in "
    "memory, parameters float32; bfloat16 is autocast in torch. First row: our time. Below: how many times that torch "
    "takes, median of the rounds and the middle 80 % of them; above 1 we are faster. We split the batch over a device "
    "for each core, as the trainers do; one device leaves the cores to XLA. torch uses all cores, and has SDPA (ALiBi "
    "by a bias array made once) and the fused AdamW. Each has a process of its own, and ten steps before the first "
    "round: in them memory settles. In a round each takes two steps, of which the second is timed. First calls "
    "compile. Ours takes the norm of the gradient too, and leaves out a step whose loss or gradient is not finite. "
    "What limits us: each device reads all parameters and moments and writes all gradients, and the scan over layers, "
    "which keeps compilation short, writes what the backward pass needs a second time, into arrays of all layers.",
    cases,
    "way",
)
