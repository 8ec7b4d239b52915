"""Training statistics, accumulated on the devices and fetched only for reports; divergence; profiling.

A run halts at step t if

    loss_t is not finite, the gradient is not finite, or loss_t > spike · median(loss_{t-32}, ..., loss_{t-1})

The updates of step t and of all later steps are then not applied, so the state stays the one before step t, however
late the halt is noticed.
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
"""Number of losses in the running median; before there are that many, no loss counts as a spike."""

NO_LOSS = float(np.finfo(np.float32).max)
"""Loss in the window for a step that was not taken yet; a NaN, as in checkpoints of earlier versions, would end
a run with JAX_DEBUG_NANS."""

STACKED = "blocks"
"""Attribute of a model whose parameters are stacked over layers."""

GROUPS = 4
"""Maximum number of groups of layers that are summarized separately."""

HIDDEN_PATH_PARTS = {"stack", "layers", STACKED, "attention"}
"""Parts of parameter paths that are left out of the names of metrics."""


class Watch(NamedTuple):
    """Statistics of the steps, part of the training state.

    Attributes:
        halted: a step was not applied, nor was any step after it.
        loss: loss of the last step, or of the one that halted the run.
        recent: losses of the last `WINDOW` steps in any order; `NO_LOSS` where there are fewer.
        steps: number of steps since the last report.
        norm: sum of their gradient norms, before clipping.
        largest: the largest of these norms.
    """

    halted: Bool[Array, ""]
    loss: Float[Array, ""]
    recent: Float[Array, " window"]
    steps: Float[Array, ""]
    norm: Float[Array, ""]
    largest: Float[Array, ""]


def initial_watch() -> Watch:
    """Return the statistics before the first step."""
    zero = lambda: jnp.zeros((), jnp.float32)  # no two leaves may share a buffer that is donated
    return Watch(jnp.zeros((), bool), zero(), jnp.full((WINDOW,), NO_LOSS, jnp.float32), zero(), zero(), zero())


def checked_step(
    watch: Watch, step: Array, loss: Float[Array, ""], norm: Float[Array, ""], spike: float
) -> tuple[Bool[Array, ""], Watch]:
    """Return whether to apply a step, and the statistics after it.

    Args:
        watch: the statistics before it.
        step: its number.
        loss: its mean loss.
        norm: norm of its gradient.
        spike: largest allowed ratio of the loss to the running median; 0 = no limit.
    """
    accepted = jnp.isfinite(loss) & jnp.isfinite(norm)
    has_loss = jnp.abs(watch.recent) < NO_LOSS
    recent = jnp.where(has_loss, watch.recent, NO_LOSS)
    if spike:
        accepted &= ~((loss > spike * jnp.median(recent)) & has_loss.all())
    accepted &= ~watch.halted
    after = Watch(
        ~accepted,
        loss,
        recent.at[step % WINDOW].set(loss),
        watch.steps + 1.0,
        watch.norm + norm,
        jnp.maximum(watch.largest, norm),
    )
    state = select(accepted, after, watch)
    return accepted, state._replace(halted=~accepted, loss=jnp.where(watch.halted, watch.loss, loss))


def reset_watch(watch: Watch) -> Watch:
    """Return the statistics reset after a report, with the same shardings."""
    zero = lambda leaf: jnp.zeros_like(leaf, device=leaf.sharding)
    return watch._replace(steps=zero(watch.steps), norm=zero(watch.norm), largest=zero(watch.largest))


def select(condition: Bool[Array, ""], tree: Any, other_tree: Any) -> Any:
    """Return the first tree of arrays where the condition holds, else the second."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), tree, other_tree)


def gradient_norms(watch: Watch) -> dict[str, float]:
    """Return the mean and the maximum gradient norm since the last report."""
    return {"grad_norm": float(watch.norm / watch.steps), "grad_norm_max": float(watch.largest)}


def position_figures(params: Any) -> dict[str, Float[Array, "3"]]:
    """Return the minimum, mean and maximum of every learned parameter of the encodings, by name.

    Parameters of layers are summarized in up to four groups of consecutive layers: "position/all/slopes/layers_0_2".

    Args:
        params: parameters of the model.
    """
    figures = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(entry.key) for entry in path]
        if "position" in names:
            name = "/".join(name for name in names if name not in HIDDEN_PATH_PARTS)
            stacked = STACKED in names[: names.index("position")]
            groups = layer_groups(len(leaf)) if stacked else {"": ...}  # a number has no axis
            figures |= {name + group: leaf[layers] for group, layers in groups.items()}
    return {name: jnp.stack([x.min(), x.mean(), x.max()]) for name, x in figures.items() if x.size}


def layer_groups(layers: int) -> dict[str, slice]:
    """Return at most `GROUPS` groups of consecutive layers, by name."""
    parts = np.array_split(np.arange(layers), min(layers, GROUPS))
    return {f"/layers_{part[0]}_{part[-1]}": slice(int(part[0]), int(part[-1]) + 1) for part in parts}


def figures_by_name(figures: Mapping[str, Array]) -> dict[str, float]:
    """Return the results of `position_figures` as numbers by name: "position/all/slopes/layers_0_2/mean"."""
    kinds = ("min", "mean", "max")
    return {
        f"{name}/{kind}": float(value)
        for name, three in jax.device_get(figures).items()
        for kind, value in zip(kinds, three, strict=True)
    }


def parse_profile(text: str) -> tuple[int, int]:
    """Return the first step to profile and the number of steps from "STEP:COUNT"; (0, 0) for an empty string.

    Raises:
        ValueError: any other form.
    """
    match = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", text)
    if text and not match:
        raise ValueError(f"profile must be STEP:COUNT, two positive numbers, got {text!r}")
    return (int(match[1]), int(match[2])) if match else (0, 0)


class Profile:
    """Profiles some steps with JAX's profiler, for TensorBoard or Perfetto.

    Args:
        span: the first step to profile and how many, as `parse_profile` returns them.
        folder: the trace is written there.
    """

    def __init__(self, span: tuple[int, int], folder: Path) -> None:
        self.first, self.count = span
        self.folder, self.running = folder, False

    def before(self, step: int, state: Any) -> None:
        """Start or stop the trace if this step requires it, after waiting for the previous steps."""
        if step == self.first:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder))
            self.running = True
        elif self.running and step == self.first + self.count:
            self.end(state)

    def end(self, state: Any) -> None:
        """Stop the trace if one is running."""
        if self.running:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self.running = False
