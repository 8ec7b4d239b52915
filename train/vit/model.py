"""The vision transformer of a run: its loss, its probe, and its parameters at another image size."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from pejax import adapt, augment_positions, grid_positions, init_params, merge_params
from pejax.models import Execution, ViT, vit
from pejax.models.stack.layer_scan import Body
from train.data.images import Dataset, evaluation_batches, train_batches
from train.data.images.augment import Augment
from train.engine import attention_entropy
from train.engine.loop import Metrics
from train.engine.options import names_of
from train.engine.task import Split, laws, layer_params
from train.vit.config import Config, evaluation_sizes
from train.vit.mixing import mix

SUMS = ("loss", "top1", "count")
"""Names of the sums that the loss returns."""

PROBED = 8
"""Maximum number of training images that the probe reads."""


class Classifier(Split[ViT]):
    """The model of a run.

    Args:
        config: settings of the run.
        channels: channels of an image.
        classes: number of classes.

    Raises:
        ValueError: the config does not fit the model or its encoding.
    """

    def __init__(self, config: Config, channels: int, classes: int) -> None:
        self.config = config
        make = partial(
            vit,
            image_size=config.size,
            channels=channels,
            classes=classes,
            layer_scale=config.layer_scale or None,
            pe=config.pattern,
            **{name: getattr(config, name) for name in names_of(config, "shape") if name not in ("pe", "layer_scale")},
            stochastic_depth=config.stochastic_depth,
            dtype=config.dtype,
        )
        self.vit = make()
        super().__init__(lambda rngs: ViT(self.vit, rngs=rngs))
        self.dims = self.prototype.dims
        rotates = any(encoding.rotate for encoding in self.prototype.encodings)
        usual = ("none", "pi(stretch=True)") if rotates else ("none",)
        self.extended: dict[str, Split[ViT]] = {
            extend: self if extend == "none" else Split(lambda rngs, extend=extend: ViT(make(extend=extend), rngs=rngs))
            for extend in config.extensions or usual
        }

    def loss(
        self, params: Any, batch: Mapping[str, Array], key: Array, *, execution: Execution = Execution()
    ) -> tuple[Array, Metrics]:
        """Return the mean cross-entropy with smoothed labels, and the sums over the batch.

        Args:
            params: parameters of the model.
            batch: `image` `(B, H, W, C)` and `label` `(B,)`.
            key: random key of mixing, of the model and of the positions.
            execution: the devices, shardings and rematerialization.
        """
        config, images = self.config, batch["image"]
        targets = jax.nn.one_hot(batch["label"], self.vit.classes)
        of_mix, of_model = jax.random.split(key)
        if config.mixup or config.cutmix:
            images, targets = mix(images, targets, config.mixup, config.cutmix, of_mix)
        positions = self.positions(key)
        logits = self.model(params)(images, positions=positions, train=True, key=of_model, execution=execution)
        losses = classification_losses(logits, targets, config.loss, config.label_smoothing)
        right = jnp.argmax(logits, -1) == jnp.argmax(targets, -1)
        count = jnp.asarray(len(images), jnp.float32)
        return losses.mean(), {"loss": losses.sum(), "top1": right.sum(dtype=jnp.float32), "count": count}

    def positions(self, key: Array) -> Float[Array, "T 2"] | None:
        """Return the positions of the patches in one training step, moved at random; None = as they are."""
        options = self.config.position_options
        if not options:
            return None
        of_positions = jax.random.fold_in(key, 2)  # apart from the two that `loss` splits off the same key
        return augment_positions(of_positions, grid_positions(*self.vit.grid), **options)

    def logits(
        self, params: Any, images: Float[Array, "B h w c"], *, extend: str = "", execution: Execution = Execution()
    ) -> Float[Array, "B classes"]:
        """Return the logits of images of any size.

        Args:
            params: parameters of the model.
            images: their sides are multiples of the patch.
            extend: one of the extensions of the evaluation; empty = the first.
            execution: the devices and shardings.
        """
        return self.extended[extend or next(iter(self.extended))].model(params)(images, execution=execution)

    def prober(self, dataset: Dataset) -> Callable[[Any], dict[str, float]]:
        """Return the probe `(params) -> values`: the attention entropy of every layer on a few training images."""
        count = min(PROBED, len(dataset.train))
        images = next(train_batches(dataset, count, self.config.seed, Augment()))["image"]

        def read(params: Any, execution: Execution) -> Array:
            return self.model(params)(jnp.asarray(images), execution=execution)

        measure = attention_entropy.entropy_probe(read, axes=2)
        return lambda params: attention_entropy.entropies_by_name(measure(params))

    def head_entropies(self, dataset: Dataset, params: Any, size: int) -> list[list[Array]]:
        """Return the attention entropy of every layer and head, `(L, H)`, on a few test images of one size.

        Raises:
            ValueError: the encoding refuses the size.
        """
        count = min(PROBED, len(dataset.test(size)))
        images = next(evaluation_batches(dataset, size, count))["image"]

        def read(params: Any, execution: Execution) -> Array:
            return self.logits(params, jnp.asarray(images), execution=execution)

        return attention_entropy.entropy_probe(read, axes=2, heads=True)(params)

    def laws(self, params: Any) -> str:
        """Test the encoding of the first layer against its laws; return one line with the deviations."""
        return laws(self.config.pattern, layer_params(params, 0), self.dims)


def classification_losses(
    logits: Float[Array, "B classes"], targets: Float[Array, "B classes"], kind: str, smoothing: float
) -> Float[Array, " B"]:
    """Return the loss of every image, in nats.

    Args:
        logits: logits of the model.
        targets: probabilities of the classes, which sum to 1.
        kind: `softmax`: cross-entropy; `bce`: binary cross-entropy, the mean over classes, in which every class with a
            positive probability is a full positive.
        smoothing: smoothing of the targets.

    Reference:
        Touvron et al. 2022, "DeiT III" (arXiv 2204.07118), section 3.1: binary cross-entropy.
    """
    if kind == "softmax":
        return optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, smoothing))
    positive = optax.smooth_labels((targets > 0).astype(jnp.float32), smoothing)
    return optax.sigmoid_binary_cross_entropy(logits, positive).mean(-1)


def resized_params(old: Classifier, new: Classifier, params: Any) -> Any:
    """Return trained parameters for another image size; the ones that depend on the grid pass through `encoding.adapt`.

    Raises:
        ValueError: the shape of a parameter still differs.
    """
    if any(encoding.adapt for encoding in old.prototype.encodings):
        params = _resized_params(old, params, new.dims.extent)
    for (path, leaf), (_, like) in zip(*map(jax.tree_util.tree_leaves_with_path, (params, new.shapes)), strict=True):
        if leaf.shape != like.shape:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"{new.config.size} px needs {name} of shape {like.shape}, resizing gave {leaf.shape}")
    return params


def _resized_params(classifier: Classifier, params: Any, extent: Any) -> Any:
    """Return the parameters with those of its encodings adapted to another grid.

    An encoding is shared by all layers of the model, or owned by each layer, whose parameters are stacked, or both.
    """
    new_params = jax.tree.map(lambda leaf: leaf, params)  # other dicts, since their entries are replaced below
    for body in classifier.prototype.layers.bodies:
        encoding = classifier.prototype.encodings[body.encoding]
        if encoding.adapt is None:
            continue
        model, layers = _position_owners(new_params, body)
        of_model, of_layers = (owner.get("position", {}) for owner in _position_owners(params, body))
        each_layer = [jax.tree.map(lambda leaf, n=n: leaf[n], of_layers) for n in range(len(body.layers))]
        new_positions = [adapt(encoding, merge_params(of_model, of_layer), extent) for of_layer in each_layer]
        if of_model:
            model["position"] = _like(of_model, new_positions[0])
        if of_layers:
            layers["position"] = _like(of_layers, jax.tree.map(lambda *leaves: jnp.stack(leaves), *new_positions))
    return new_params


def _position_owners(params: Any, body: Body) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of the parameters that hold those of a body's encoding: of the model, and of its layers."""
    layers = params["layers"][f"body_{body.number}"] if body.number else params["layers"]
    model = params.get(f"encoding_{body.encoding}", {}) if body.encoding else params
    return model, layers["blocks"]["attention"]


def _like(template: Any, tree: Any) -> Any:
    """Return the part of `tree` that has the names of `template`: `adapt` adds constants, which are not parameters."""
    if not isinstance(template, dict):
        return tree
    return {name: _like(value, tree[name]) for name, value in template.items()}


def require_trainable_positions(classifier: Classifier) -> None:
    """Check that the encoding takes the farthest positions that training may draw.

    Raises:
        ValueError: naming the encoding, its rule and the position.
    """
    config, encoding = classifier.config, classifier.prototype.encoding
    if not config.position_options:
        return
    reach, grow = config.position_shift + config.position_noise, config.position_jitter * config.position_rescale
    ends = jnp.asarray([[-reach, -reach], [side - 1 + reach for side in classifier.vit.grid]], jnp.float32)
    farthest = jnp.concatenate([ends * grow, ends / grow])
    if encoding.embed is not None:
        params = adapt(encoding, init_params(encoding, jax.random.key(0)), classifier.dims.extent)
        try:
            encoding.embed(params, jnp.zeros((len(farthest), config.width)), farthest)
        except ValueError as refused:
            rule = f"pe={config.pe} must take the positions that position_shift, _jitter, _rescale and _noise allow"
            raise ValueError(f"{rule}: {refused}") from None


def require_evaluable(classifier: Classifier) -> None:
    """Trace the evaluation at the smallest and the largest size, to find unsupported sizes before training.

    Raises:
        ValueError: the encoding does not support a size.
    """
    sizes = evaluation_sizes(classifier.config)
    for size in {min(sizes), max(sizes)}:
        image = jax.ShapeDtypeStruct((1, size, size, classifier.vit.channels), jnp.float32)
        for extend in classifier.extended:
            jax.eval_shape(partial(classifier.logits, extend=extend), classifier.shapes, image)
