"""What a run is watched by, at no cost between reports: the step's own figures stay on the devices until one is due.

    loss_t not finite, gradient not finite, or loss_t > spike · median(loss_{t-32}, ..., loss_{t-1})

halts a run: the update of step t and of every later one is not applied, so that the state remains the one before it,
whatever was donated and however late the report notices.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

WINDOW = 32
"""Losses that the running median is taken over; before there are as many, no loss counts as a spike."""

STACKED = "blocks"
"""Attribute of a model whose parameters are stacked on L."""

GROUPS = 4
"""Parts that the layers are summarised in, at most."""

HIDDEN_PATH_PARTS = {"stack", "layers", STACKED, "attention"}
"""Attributes on the way to an encoding that every model has."""


class Watch(NamedTuple):
    """Figures of the steps, in the state.

    Attributes:
        halted: a step was not applied, and none after it.
        loss: of the last step, or of the one that halted the run.
        recent: losses of the last `WINDOW` steps in no order; NaN where there were none.
        steps: since the last report.
        norm: sum over them of the norm of the gradient, before clipping.
        largest: the largest such norm.
    """

    halted: Bool[Array, ""]
    loss: Float[Array, ""]
    recent: Float[Array, " window"]
    steps: Float[Array, ""]
    norm: Float[Array, ""]
    largest: Float[Array, ""]


def begin() -> Watch:
    """Return the figures before the first step."""
    zero = lambda: jnp.zeros((), jnp.float32)  # no two leaves may share a buffer that is donated
    return Watch(jnp.zeros((), bool), zero(), jnp.full((WINDOW,), jnp.nan), zero(), zero(), zero())


def observe(
    watch: Watch, step: Array, loss: Float[Array, ""], norm: Float[Array, ""], spike: float
) -> tuple[Bool[Array, ""], Watch]:
    """Return whether a step is to be applied, and the figures with it.

    Args:
        watch: before it.
        step: its number.
        loss: its mean loss.
        norm: of its gradient.
        spike: times the running median that a loss may reach; 0 = any.
    """
    well = jnp.isfinite(loss) & jnp.isfinite(norm)
    if spike:
        well &= ~(loss > spike * jnp.median(watch.recent))  # of NaN, while there are few: then nothing is too large
    well &= ~watch.halted
    after = Watch(
        ~well,
        loss,
        watch.recent.at[step % WINDOW].set(loss),
        watch.steps + 1.0,
        watch.norm + norm,
        jnp.maximum(watch.largest, norm),
    )
    kept = choose(well, after, watch)
    return well, kept._replace(halted=~well, loss=jnp.where(watch.halted, watch.loss, loss))


def cleared(watch: Watch) -> Watch:
    """Return the figures after a report, each array where it was."""
    zero = lambda leaf: jnp.zeros_like(leaf, device=leaf.sharding)
    return watch._replace(steps=zero(watch.steps), norm=zero(watch.norm), largest=zero(watch.largest))


def choose(first: Bool[Array, ""], one: Any, other: Any) -> Any:
    """Return one of two trees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)


def gradient_norms(watch: Watch) -> dict[str, float]:
    """Return the mean and the largest norm of the gradient since the last report."""
    return {"grad_norm": float(watch.norm / watch.steps), "grad_norm_max": float(watch.largest)}


def position_figures(params: Any) -> dict[str, Float[Array, "3"]]:
    """Return the least, mean and largest value of every learned parameter of encodings, by name.

    Those of layers come in up to four groups of consecutive layers: "position/all/slopes/layers_0_2".

    Args:
        params: of the model.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(entry.key) for entry in path]
        if "position" in names:
            name = "/".join(name for name in names if name not in HIDDEN_PATH_PARTS)
            stacked = STACKED in names[: names.index("position")]
            groups = layer_groups(len(leaf)) if stacked else {"": slice(None)}
            found |= {name + group: leaf[layers] for group, layers in groups.items()}
    return {name: jnp.stack([x.min(), x.mean(), x.max()]) for name, x in found.items() if x.size}


def layer_groups(layers: int) -> dict[str, slice]:
    """Return which layers are summarised together, by name: consecutive ones, in at most `GROUPS` groups."""
    parts = np.array_split(np.arange(layers), min(layers, GROUPS))
    return {f"/layers_{part[0]}_{part[-1]}": slice(int(part[0]), int(part[-1]) + 1) for part in parts}


def named(figures: Mapping[str, Array]) -> dict[str, float]:
    """Return what `position_figures` found as numbers: "position/all/slopes/layers_0_2/mean"."""
    kinds = ("min", "mean", "max")
    return {
        f"{name}/{kind}": float(value)
        for name, three in jax.device_get(figures).items()
        for kind, value in zip(kinds, three, strict=True)
    }


def parse_profile(text: str) -> tuple[int, int]:
    """Return the first step to trace and how many, given as "STEP:COUNT"; (0, 0) for an empty text.

    Raises:
        ValueError: a text of another form.
    """
    found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", text)
    if text and not found:
        raise ValueError(f"profile must be STEP:COUNT, two positive numbers, got {text!r}")
    return (int(found[1]), int(found[2])) if found else (0, 0)


class Profile:
    """Traces some steps with JAX's profiler, for TensorBoard or Perfetto.

    Args:
        span: the first step to trace and how many, as `parse_profile` returns them.
        folder: that receives the trace.
    """

    def __init__(self, span: tuple[int, int], folder: Path) -> None:
        self.first, self.count = span
        self.folder, self.running = folder, False

    def before(self, step: int, state: Any) -> None:
        """Begin or end the trace where it is due, before this step; what the steps before it compute is awaited."""
        if step == self.first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder))
            self.running = True
        elif self.running and step == self.first + self.count:
            self.end(state)

    def end(self, state: Any) -> None:
        """End the trace, if one is being taken."""
        if self.running:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self.running = False
