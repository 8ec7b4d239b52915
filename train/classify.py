"""A vision transformer on a labelled image set: the pieces that training and evaluation share."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from pejax.encoding import Params, merge_params
from pejax.models.vit import ViT, ViTConfig
from pejax.positions import grid_positions, interpolate_positions
from pejax.testing import assert_norm_preserved, assert_shift_invariant, assert_tile_consistent, shift_deviation
from train.config import MODEL_FIELDS, Config
from train.loop import Metrics

SUMS = ("loss", "top1", "count")
"""What the loss adds up over a batch."""

NO_DECAY = ("position", "cls", "registers")
"""Attributes of the model whose parameters are never decayed; of all others, kernels alone are."""


class Classifier:
    """The model of a run, split into a static definition and parameters that travel as a plain pytree.

    Args:
        config: of the run.
        channels: of an image.
        classes: to tell apart.

    Raises:
        ValueError: what the model or its encoding refuses.
    """

    def __init__(self, config: Config, channels: int, classes: int) -> None:
        self.config = config
        self.vit = ViTConfig(
            image_size=config.size,
            channels=channels,
            classes=classes,
            layer_scale=config.layer_scale or None,
            **{name: getattr(config, name) for name in MODEL_FIELDS if name != "layer_scale"},
            stochastic_depth=config.stochastic_depth,
            dtype=config.dtype,  # pyright: ignore[reportArgumentType]  # ViTConfig checks it
        )
        model = nnx.eval_shape(lambda: ViT(self.vit, rngs=nnx.Rngs(0)))
        self.encoding, self.dims = model.encoding, model.dims
        self.graphdef, self.abstract = nnx.split(model)
        self.shapes = nnx.to_pure_dict(self.abstract)

    def init(self, key: Array) -> Any:
        """Draw the parameters."""
        return jax.jit(lambda key: nnx.to_pure_dict(nnx.state(ViT(self.vit, rngs=nnx.Rngs(key)))))(key)

    def model(self, params: Any) -> ViT:
        """Return the model with these parameters."""
        state = jax.tree.map(lambda leaf: leaf, self.abstract)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(self.graphdef, state)

    def loss(self, params: Any, batch: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Return the mean cross-entropy with smoothed labels, and the sums over the batch.

        Args:
            params: of the model.
            batch: `image` `(B, H, W, C)` and `label`, `(B,)` classes or `(B, classes)` probabilities.
            key: of what the model draws.
        """
        logits = self.model(params)(batch["image"], train=True, key=key)
        label = batch["label"]
        targets = jax.nn.one_hot(label, logits.shape[-1]) if label.ndim == 1 else label
        losses = optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, self.config.label_smoothing))
        right = jnp.argmax(logits, -1) == jnp.argmax(targets, -1)
        count = jnp.asarray(len(label), jnp.float32)
        return losses.mean(), {"loss": losses.sum(), "top1": right.sum(dtype=jnp.float32), "count": count}

    def logits(self, params: Any, images: Float[Array, "B h w c"], *, extend: str) -> Float[Array, "B classes"]:
        """Return the logits of images of any size.

        Args:
            params: of the model.
            images: sides in whole patches.
            extend: `pi` squeezes the positions of a larger grid into the trained one; `none` leaves them as they are.
        """
        model = self.model(params)
        grid = tuple(side // self.config.patch for side in images.shape[1:3])
        trained: Any = self.dims.extent
        if extend == "none" or max(grid) <= max(trained):
            return model(images)
        return model(images, positions=interpolate_positions(grid_positions(*grid), trained, grid), extent=trained)

    def optimizer(self, steps: int, steps_per_epoch: int) -> tuple[optax.GradientTransformation, optax.Schedule]:
        """Return AdamW with linear warm-up, cosine decay to 0 and masked weight decay, and its schedule."""
        config = self.config
        warmup = min(round(config.warmup * steps_per_epoch), steps)
        schedule = optax.warmup_cosine_decay_schedule(0.0, config.lr, warmup, max(steps, warmup + 1))
        adamw = optax.adamw(schedule, b1=0.9, b2=0.999, weight_decay=config.weight_decay, mask=decayed)
        return (optax.chain(optax.clip_by_global_norm(config.clip), adamw) if config.clip else adamw), schedule

    def laws(self, params: Any) -> str:
        """Run the laws on the initialised encoding of the first layer and return one line of what they measured.

        Raises:
            AssertionError: a law that the encoding declares does not hold.
        """
        subject = (self.encoding, self.layer_params(params, 0), self.dims)
        if self.encoding.shift_invariant:
            found = [f"shift invariance of logits max |Δ| {assert_shift_invariant(*subject):.1e} ok"]
        else:
            found = [f"a shift moves the logits by {shift_deviation(*subject):.1e}, as declared"]
        if self.encoding.rotate is not None and self.encoding.rotate_keys is None:
            found.append(f"norms of queries and keys max |Δ| {assert_norm_preserved(*subject):.1e} ok")
        if self.encoding.bias is not None:
            found.append(f"bias by tiles max |Δ| {assert_tile_consistent(*subject):.1e} ok")
        return "laws: " + " · ".join(found)

    def layer_params(self, params: Any, layer: int) -> Params:
        """Return the encoding's parameters as one layer sees them: the shared ones and its own."""
        own = jax.tree.map(lambda leaf: leaf[layer], layer_positions(params))
        return merge_params(params.get("position", {}), own)


def decayed(params: Any) -> Any:
    """Return which parameters get weight decay: kernels outside of `NO_DECAY`."""
    names = lambda path: [str(entry.key) for entry in path]  # noqa: E731
    kernel = lambda path, _: names(path)[-1] == "kernel" and not set(names(path)) & set(NO_DECAY)  # noqa: E731
    return jax.tree_util.tree_map_with_path(kernel, params)


def resized(old: Classifier, new: Classifier, params: Any) -> Any:
    """Return trained parameters for another image size; what depends on the grid passes through `encoding.at`.

    Args:
        old: what the parameters were trained in.
        new: what they are for.
        params: of the old model.

    Raises:
        ValueError: a parameter whose shape still differs, by name.
    """
    if old.encoding.at is not None:
        params = _positions_at(old, params, new.dims.extent)
    for (path, had), (_, wanted) in zip(*map(jax.tree_util.tree_leaves_with_path, (params, new.shapes)), strict=True):
        if had.shape != wanted.shape:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"{new.config.size} px needs {name} of shape {wanted.shape}, resizing gave {had.shape}")
    return params


def _positions_at(classifier: Classifier, params: Any, extent: Any) -> Any:
    per_layer = [
        classifier.encoding.at(classifier.layer_params(params, layer), extent)  # pyright: ignore[reportOptionalCall]
        for layer in range(classifier.config.layers)
    ]  # fmt: skip
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *per_layer)
    fitted = jax.tree.map(lambda leaf: leaf, params)
    if "position" in params:
        fitted["position"] = _like(params["position"], per_layer[0])
    if layer_positions(params):
        fitted["layers"]["blocks"]["attention"]["position"] = _like(layer_positions(params), stacked)
    return fitted


def layer_positions(params: Any) -> Params:
    """Return the encoding's parameters of all layers, stacked on L."""
    return params["layers"]["blocks"]["attention"].get("position", {})


def _like(wanted: Any, found: Any) -> Any:
    """Return the part of `found` that has the names of `wanted`: `at` adds constants, which are not parameters."""
    if not isinstance(wanted, dict):
        return found
    return {name: _like(value, found[name]) for name, value in wanted.items()}
