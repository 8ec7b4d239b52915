"""The settings of a run of `train.dit`, their presets and rules."""

import re
from typing import Any, Self

from train.engine.config import RunConfig, split_list
from train.engine.options import option, options

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {},
    "gpu": {
        "data": "fashion", "patch": 2, "width": 256, "layers": 8, "heads": 8, "dtype": "bfloat16", "batch": 256,
        "steps": 20_000, "warmup": 500, "lr": 5e-4, "ema": 0.9995, "eval_limit": 2048, "sampling_steps": 50,
        "eval_shapes": "14,28,42,56,70,84,28x56,56x28,28x84", "log_every": 100, "checkpoint_every": 2000,
    },
    "video": {
        "data": "moving_glyphs", "frames": 8, "width": 288, "layers": 8, "heads": 6, "dtype": "bfloat16", "batch": 128,
        "steps": 20_000, "warmup": 500, "lr": 5e-4, "ema": 0.9995, "eval_limit": 512, "sampling_steps": 50,
        "log_every": 100, "checkpoint_every": 2000,
    },
}  # fmt: skip

Shape = tuple[int, ...]
"""Height and width of a picture, pixels, or frames, height and width of a video."""


@options
class Config(RunConfig):
    """Train a diffusion transformer on pictures of one size or videos, then sample larger or longer ones; measure them.

    --preset sets all other options; explicitly given options override it.
    """

    program = "dit"
    presets = PRESETS
    readers = ("folder",)
    first = ("preset", "pe", "data", "steps", "size", "frames", "extend", "eval_shapes", "out", "resume")

    preset: str = option(
        "demo", "demo: letters, on two cores; gpu: clothes at patches of 2; video: moving letters; these on a GPU"
    )
    pe: str = option(
        "rope_axial",
        'positional encoding: "rope_axial(base=50)", "learned+rope", your own: "my_module:mine"',
        shape=True,
    )
    data: str = option(
        "glyphs", "glyphs, fashion, folder:PATH (a subfolder per class), tfds:NAME; videos: moving_glyphs"
    )
    init: str = option("", "run folder whose trained weights training starts from")
    width: int = option(96, "channels of the residual stream")
    layers: int = option(4, "transformer layers")
    batch: int = option(32, "images or videos per step, over all devices")
    lr: float = option(2e-3, "peak learning rate")
    weight_decay: float = option(0.0, "weight decay, of kernels only")
    clip: float = option(1.0, "clip the gradient to this global norm; 0 = no clipping")
    ema: float = option(0.999, "decay of an exponential moving average of the weights, which samples; 0 = none")
    eval_limit: int = option(256, "pictures or videos to sample per shape and extension")
    extend: str = option(
        "", "at other sizes: none, pi, ntk, ..., with commas; empty = the usual ones that the encoding has"
    )

    size: int = option(28, "side of the training images, pixels", "data", at_least=1, copied=True)
    frames: int = option(0, "frames of the training videos; 0 = pictures", "data", at_least=0, copied=True, late=True)
    patch: int = option(4, "side of a patch, pixels", "model", at_least=1, shape=True)
    mlp_ratio: int = option(4, "channels inside the MLP, as a multiple of the width", "model", at_least=1, shape=True)

    steps: int = option(12_000, "training steps", "training", at_least=1)
    warmup: int = option(200, "steps of linear warm-up", "training", at_least=0, tuned=True)
    times: str = option(
        "logit_normal",
        "distribution of the time in training: logit_normal or uniform",
        "training",
        choices=("logit_normal", "uniform"),
    )
    class_dropout: float = option(
        0.1, "fraction of training images without their class, for guidance", "training", at_least=0, below=1
    )

    eval_shapes: str = option(
        "",
        '"28,42,28x56", height x width, empty = 1, 1.5, 2 times --size, 1 x 2; videos: "16x28x28"',
        "evaluation and reports",
        free=True,
    )
    guidance: float = option(
        2.0, "scale of classifier-free guidance; 1 = none", "evaluation and reports", at_least=0, free=True
    )
    sampler: str = option(
        "euler",
        "euler, or heun: two evaluations per step",
        "evaluation and reports",
        choices=("euler", "heun"),
        free=True,
    )
    sampling_steps: int = option(20, "steps from noise to a picture", "evaluation and reports", at_least=1, free=True)

    @property
    def trained(self) -> str:
        """The side of the training images, behind the frames of videos, in words."""
        return f"{self.frames} x {self.size} px" if self.frames else f"{self.size} px"

    @property
    def tokens(self) -> int:
        """The tokens of a training image or video."""
        return max(self.frames, 1) * (self.size // self.patch) ** 2

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes to sample at: the trained one, then the others."""
        training_shape, patches = (self.size, self.size), self.size // self.patch
        larger, double = self.patch * -(-3 * patches // 2), 2 * self.size
        default = ((larger, larger), (double, double), (self.size, double))
        if self.frames:
            training_shape, default = (self.frames, *training_shape), ((2 * self.frames, *training_shape),)
        evaluation_shapes = parse_shapes(self.eval_shapes, videos=self.frames > 0) if self.eval_shapes else default
        return tuple(dict.fromkeys((training_shape, *evaluation_shapes)))

    def shape_at(self, size: int) -> Shape:
        """Return the shape of results at a size: a square picture of this side, or a video of so many frames."""
        return (size, self.size, self.size) if self.frames else (size, size)

    def validated(self) -> Self:
        """Return the config after checking it."""
        super().validated()
        if self.eval_limit < 2:
            rule = "eval_limit must be at least 2, because pictures to sample are unlimited and a covariance needs two"
            raise ValueError(f"{rule}, got {self.eval_limit}")
        if self.guidance != 1 and not self.class_dropout:
            rule = "guidance must be 1 with class_dropout=0, because the model has not learned pictures of no class"
            raise ValueError(f"{rule}, got {self.guidance}")
        for side in {side for shape in self.shapes for side in shape[-2:]}:
            if side < self.patch or side % self.patch:
                raise ValueError(f"image sizes must be multiples of the patch, {self.patch}, got {side}")
        return self


def in_words(shape: Shape) -> str:
    """Return a shape in words: "28 x 56", or "16 x 28 x 28"."""
    return " x ".join(map(str, shape))


def parse_shapes(text: str, *, videos: bool = False) -> tuple[Shape, ...]:
    """Return the shapes in a list such as "28,42,28x56", or of videos "8x28x28,16x28x28".

    Raises:
        ValueError: something else, or a shape given twice.
    """
    shapes = []
    for part in split_list(text, "eval_shapes"):
        if videos:
            numbers = re.fullmatch(r"(0*[1-9]\d{0,8}) ?x ?(\d{1,9}) ?x ?(\d{1,9})", part)
            if numbers is None:
                rule = "eval_shapes of videos must be frames x height x width, such as 8x28x28,16x28x28"
                raise ValueError(f"{rule}, got {part!r}")
            shapes.append(tuple(map(int, numbers.groups())))
            continue
        sides = re.fullmatch(r"(\d{1,9})(?: ?x ?(\d{1,9}))?", part)
        if sides is None:
            raise ValueError(f"eval_shapes must be sides, or heights x widths, such as 28,42,28x56, got {part!r}")
        shapes.append((int(sides[1]), int(sides[2] or sides[1])))
    return tuple(shapes)
