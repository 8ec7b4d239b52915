"""The diffusion transformer of a run: its loss, its velocity with any extension, and the pictures that it samples."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pejax import make_encoding
from pejax.models import DiT, Execution, dit
from train.data.images import Dataset
from train.dit.config import Config, Shape
from train.dit.flow import draw_times, flow_losses, guide, noisy, sample
from train.dit.pictures import size_of, spread, true_pictures
from train.engine import attention_entropy
from train.engine.loop import Metrics
from train.engine.options import names_of
from train.engine.task import Split, laws, layer_params

SUMS = ("loss", "count")
"""Names of the sums that the loss returns."""

EXTENSIONS = ("none", "pi", "ntk", "yarn", "by_step(above='linear')")
"""Extensions of an evaluation where none are given. They leave the trained size as it is."""

OF_VIDEOS = ("none", "pi", "yarn", "riflex(axis=0)")
"""Those of videos. Without a factor, they take it from the grid, axis by axis: of longer videos that of time alone."""

PROBED = 8
"""Number of test images on which the entropy of attention is measured."""


class Sampler(Split[DiT]):
    """The model of a run.

    Attributes:
        dit: config of the model.
        usual: extensions of an evaluation where none are given.
        extended: the model with each extension of the evaluation.

    Args:
        config: settings of the run.
        channels: channels of an image.
        classes: number of classes.

    Raises:
        ValueError: the config does not fit the model or its encoding, or the encoding does not have an extension.
    """

    def __init__(self, config: Config, channels: int, classes: int) -> None:
        self.config = config
        sizes = {name: getattr(config, name) for name in names_of(config, "shape") if name != "pe"}
        make = partial(
            dit, image_size=config.size, channels=channels, classes=classes, pe=config.pattern, dtype=config.dtype,
            frames=config.frames, **sizes,
        )  # fmt: skip
        self.dit = make()
        super().__init__(lambda rngs: DiT(self.dit, rngs=rngs))
        self.dims = self.prototype.dims
        self.usual = OF_VIDEOS if config.frames else EXTENSIONS
        extensions = config.extensions or tuple(filter(self._has, self.usual))
        self.extended: dict[str, Split[DiT]] = {
            extend: self
            if extend == "none"
            else Split(lambda rngs, extend=extend: DiT(self.dit.extended(extend), rngs=rngs))
            for extend in extensions
        }

    def _has(self, extend: str) -> bool:
        """Return whether the encodings of all layers have an extension."""
        try:
            for layer in self.dit.extended(extend).layers:
                make_encoding(layer.attention.pe, self.dit.dims_of(layer))
        except ValueError:
            return False
        return True

    def loss(
        self, params: Any, batch: Mapping[str, Array], key: Array, *, execution: Execution = Execution()
    ) -> tuple[Array, Metrics]:
        """Return the mean squared error of the velocity, and the sums over the batch.

        Args:
            params: parameters of the model.
            batch: `image` `(B, H, W, C)`, or of videos `(B, F, H, W, C)`, and `label` `(B,)`.
            key: random key of the times, the noise and the classes that are dropped.
            execution: the devices, shardings and rematerialization.
        """
        images, labels = batch["image"], batch["label"]
        of_times, of_noise, of_classes = jax.random.split(key, 3)
        time = draw_times(of_times, len(images), self.config.times)
        noise = jax.random.normal(of_noise, images.shape)
        drops = jax.random.bernoulli(of_classes, self.config.class_dropout, labels.shape)
        labels = jnp.where(drops, self.dit.classes, labels)
        velocity = self.model(params)(noisy(images, noise, time), time, labels, execution=execution)
        losses = flow_losses(velocity, images, noise)
        return losses.mean(), {"loss": losses.sum(), "count": jnp.asarray(len(images), jnp.float32)}

    def velocity(
        self,
        params: Any,
        x: Float[Array, "B *shape c"],
        time: Float[Array, " B"],
        labels: Int[Array, " B"],
        *,
        extend: str = "",
        execution: Execution = Execution(),
    ) -> Float[Array, "B *shape c"]:
        """Return the velocity at noisy images of any size.

        Args:
            params: parameters of the model.
            x: their sides are multiples of the patch.
            time: t, the same for all images; the step of an extension `by_step`.
            labels: class of each image; the number of classes = none.
            extend: one of the extensions of the evaluation; empty = the first.
            execution: the devices and shardings.
        """
        model = self.extended[extend or next(iter(self.extended))].model(params)
        return model(x, time, labels, step=time[0], execution=execution)

    def pictures(
        self,
        params: Any,
        noise: Float[Array, "B *shape c"],
        labels: Int[Array, " B"],
        *,
        extend: str = "",
        execution: Execution = Execution(),
    ) -> Float[Array, "B *shape c"]:
        """Return the pictures of these classes that the flow makes of noise, normalized as the training images."""
        config = self.config
        velocity = partial(self.velocity, params, extend=extend, execution=execution)
        flow = guide(velocity, labels, self.dit.classes, config.guidance)
        return sample(flow, noise, config.sampling_steps, config.sampler)

    def refusal(self, extend: str, shape: Shape) -> str:
        """Return why the encoding refuses a shape with an extension, in one line; empty where it accepts it."""
        image = jax.ShapeDtypeStruct((1, *shape, self.dit.channels), jnp.float32)
        time_and_label = jax.ShapeDtypeStruct((1,), jnp.float32), jax.ShapeDtypeStruct((1,), jnp.int32)
        try:
            jax.eval_shape(partial(self.velocity, extend=extend), self.shapes, image, *time_and_label)
        except ValueError as refused:
            return " ".join(str(refused).split())
        return ""

    def head_entropies(self, dataset: Dataset, params: Any, size: int) -> list[list[Array]]:
        """Return the attention entropy of every layer and head, `(L, H)`, on a few test images of one size at t = 1/2.

        Of videos, the size is the number of frames.

        Raises:
            ValueError: the encoding refuses the size.
        """
        shape = self.config.shape_at(size)
        source = dataset.test(*size_of(shape))
        images, labels = map(jnp.asarray, true_pictures(dataset, source, shape, spread(len(source), PROBED)))
        time = jnp.full((len(images),), 0.5)
        x = noisy(images, jax.random.normal(jax.random.key(0), images.shape), time)

        def read(params: Any, execution: Execution) -> Array:
            return self.velocity(params, x, time, labels, execution=execution)

        return attention_entropy.entropy_probe(read, axes=len(self.dit.grid), heads=True)(params)

    def laws(self, params: Any) -> str:
        """Test the encoding of the first layer against its laws; return one line with the deviations."""
        return laws(self.config.pattern, layer_params(params, 0), self.dims)
