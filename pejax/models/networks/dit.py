"""A diffusion transformer whose positions enter through `Encoding` records and nowhere else.

    c = time_out(silu(time_in(features of t))) + vector of the class
    x = patches @ W + b  ->  embed  ->  L blocks with adaptive norms that read c  ->  adaptive norm  ->  pixels

Model and number of tokens are the same for every encoding, and for images of any size and aspect ratio. A model of
videos cuts every frame into patches, and has three axes of positions: frame, row, column.

Reference:
    Peebles & Xie 2023, "Scalable Diffusion Models with Transformers" (arXiv 2212.09748), section 3.2.
"""

import math

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Num

from pejax._calls.arguments import checked
from pejax._calls.hook_calls import call_token_hook
from pejax._ops.phases import exact_cos_sin, geometric_frequencies
from pejax._record.encoding import STEP, Encoding, Extent, adapt
from pejax._tokens.positions import TokenPositions, grid_positions
from pejax.models.configs.model import DiTConfig
from pejax.models.execution import Execution
from pejax.models.networks.vit import images_to_patches
from pejax.models.parts.attention import LayerContext
from pejax.models.parts.layers import ACTIVATIONS, linear, make_norm, modulated, normed
from pejax.models.sharding import named
from pejax.models.stack.layered import Layered

LABEL_STD = 1.0
"""Standard deviation of the initial vectors of classes."""

FREQUENCIES, TIME_BASE, TIME_SCALE = 128, 1e4, 1000.0
"""Number and base of the frequencies of the time features, and the unit of time: t = 1 counts as 1000."""


def patches_to_images(
    patches: Float[Array, "B T pixels"], grid: tuple[int, int], patch: int
) -> Float[Array, "B height width channels"]:
    """Put patches together to images: the inverse of `images_to_patches`.

    Args:
        patches: in raster order; the numbers of a patch are ordered by row, column, channel.
        grid: rows and columns of patches.
        patch: side of a patch, pixels.
    """
    (rows, columns), batch = grid, patches.shape[0]
    pixels = patches.reshape(batch, rows, columns, patch, patch, -1).swapaxes(2, 3)
    return pixels.reshape(batch, rows * patch, columns * patch, -1)


class DiT(Layered):
    """A diffusion transformer. Before training it returns zeros, and its layers change nothing.

    Attributes:
        config: config of the model.
        dims: the dims that the encoding of the first layer was made for.
        encoding: the encoding of the first layer, whose `embed` is applied to the patches.
        position: the encoding's parameters that all layers share. The parameters of single layers are in `layers`,
            stacked, under the same name.
        labels: one vector per class, and a last one for no class.

    Args:
        config: sizes and layers of the model.
        encoding: encoding of all layers, made for the dims of `config`, for example your own. None = as `config` says.
        rngs: random streams; parameters are drawn from `params`.

    Raises:
        ValueError: a config that the encoding refuses.
    """

    @checked
    def __init__(self, config: DiTConfig, encoding: Encoding | None = None, *, rngs: nnx.Rngs) -> None:
        self.config, width = config, config.width
        zeros = nnx.initializers.zeros_init()
        self.patch = linear(
            config.pixels, width, ("pixels", "embed"), dtype=config.dtype, rngs=rngs,
            kernel_init=nnx.initializers.lecun_normal(), bias_init=zeros,
        )  # fmt: skip
        self.time_in = linear(2 * FREQUENCIES, width, (None, "embed"), dtype=config.dtype, rngs=rngs)
        self.time_out = linear(width, width, ("embed", None), dtype=config.dtype, rngs=rngs)
        labels = LABEL_STD * jax.random.normal(rngs.params(), (config.classes + 1, width))
        self.labels = nnx.Param(labels, **named("tokens", "embed"))
        self._make_layers(config, encoding=encoding, rngs=rngs)
        self.norm = make_norm(config.norm, width)
        last = {"dtype": jnp.float32, "rngs": rngs, "kernel_init": zeros, "bias_init": zeros}
        self.modulation = linear(width, 2 * width, ("embed", None), **last)
        self.out = linear(width, config.pixels, ("embed", "pixels"), **last)

    @checked
    def __call__(
        self,
        images: Float[Array, "B *shape channels"],
        time: Float[Array, " B"],
        labels: Int[Array, " B"] | None = None,
        *,
        positions: Num[Array, "*#B T A"] | None = None,
        extent: Extent | None = None,
        step: float | Float[Array, ""] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B *shape channels"]:
        """Return the prediction for noisy images of any size whose sides are multiples of the patch, in float32.

        Args:
            images: floating point, channels last: pictures `(B, height, width, C)`, or where `config.frames` is not 0
                videos `(B, F, height, width, C)` of any number of frames.
            time: t of each image, from 0 to 1.
            labels: class of each image; `config.classes` = no class. None = no class for all of them.
            positions: (row, column) of each patch in raster order, in patches, of videos (frame, row, column), frame
                by frame; None = the image's own grid.
            extent: grid (rows, columns) or (frames, rows, columns), in patches, that the encoding adapts to; None = the
                image's own grid.
            step: step of the schedule that encodings extended `by_step` read, one number for all images. None = there
                are no such encodings.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: images of another number of axes or channels, or of sides that are not multiples of the patch,
                positions of another shape, or no step for an encoding that needs it.
            TypeError: images of an integer type, whose scale the model cannot know.
        """
        config, (batch, *sides, channels) = self.config, images.shape
        if not batch:
            raise ValueError(f"images must be at least one, got shape {images.shape}")
        grid = config.grid_of(tuple(sides))
        tokens = math.prod(grid)
        if channels != config.channels:
            raise ValueError(f"images must have channels={config.channels}, got {images.shape}")
        positions, axes = grid_positions(grid) if positions is None else positions, len(grid)
        if positions.shape not in ((tokens, axes), (batch, tokens, axes)):
            rule = f"positions must be ({tokens}, {axes}) or ({batch}, {tokens}, {axes})"
            raise ValueError(f"{rule}, got {positions.shape}")
        extent = grid if extent is None else extent
        schedule = {} if step is None else {STEP: jnp.asarray(step, jnp.float32)}
        patches = images_to_patches(images.reshape(-1, *images.shape[-3:]), config.patch)
        x = self.patch(patches.reshape(batch, tokens, config.pixels))
        if self.encoding.embed is not None:
            params = {**self.encoding_params(), **schedule}
            x = call_token_hook("embed", self.encoding.embed, adapt(self.encoding, params, extent), x, positions)
        condition = self._condition(time, labels)
        context = LayerContext(
            {}, TokenPositions(positions), extent, condition=condition.astype(x.dtype), execution=execution
        )
        shared = tuple({**params, **schedule} for params in self.shared_params())
        x, _ = self.layers(execution.shard_states(x), context, shared=shared)
        shift, scale = jnp.split(self.modulation.of(ACTIVATIONS["silu"], condition)[:, None], 2, axis=-1)
        x = self.out(modulated(normed(self.norm, x.astype(jnp.float32)), shift, scale))
        chex.assert_shape(x, (batch, tokens, config.pixels))
        output = patches_to_images(x.reshape(patches.shape), (grid[-2], grid[-1]), config.patch)
        return output.reshape(images.shape)

    def _condition(self, time: Float[Array, " B"], labels: Int[Array, " B"] | None) -> Float[Array, "B C"]:
        """Return the vector of each image that adaptive norms read: the sum of those of its time and of its class."""
        cos, sin = exact_cos_sin(TIME_SCALE * time.astype(jnp.float32), geometric_frequencies(FREQUENCIES, TIME_BASE))
        of_time = self.time_out.of(ACTIVATIONS["silu"], self.time_in(jnp.concatenate([cos, sin], axis=-1)))
        table = self.labels[...]
        of_class = table[-1] if labels is None else jnp.take(table, labels, axis=0)
        return of_time.astype(jnp.float32) + of_class
