"""The settings of a run of `train.vit`, their presets and rules."""

import dataclasses
from typing import Any, Self

from train.engine.config import RunConfig, require_choice
from train.engine.options import option, options

RECIPE = {
    "pool": "cls", "mlp_ratio": 4, "label_smoothing": 0.1,
    "rand_augment": True, "mixup": 0.8, "cutmix": 1.0, "erasing": 0.25,
}  # fmt: skip

VIT_S16 = {"size": 224, "patch": 16, "width": 384, "layers": 12, "heads": 6}

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {},
    "table": {"patch": 2, "width": 128, "layers": 6, "epochs": 100, "batch": 128, "lr": 1e-3, "warmup": 20.0, **RECIPE},
    "imagenet100": {
        "data": "folder:imagenet100", **VIT_S16, "epochs": 100, "batch": 256, "lr": 1e-3, "warmup": 20.0, **RECIPE,
        "log_every": 100, "checkpoint_every": 1000, "probe_every": 1000,
    },
    "deit3_rope": {
        "data": "folder(path='imagenet', shown=1.0)", **VIT_S16, "pool": "cls", "mlp_ratio": 4, "layer_scale": 1e-4,
        "optimizer": "lamb", "epochs": 400, "batch": 2048, "lr": 4e-3, "lr_end": 1e-5, "warmup": 5.0,
        "weight_decay": 0.03, "clip": 1.0, "loss": "bce", "label_smoothing": 0.0,
        "three_augment": True, "repeats": 3, "mixup": 0.8, "cutmix": 1.0,
        "log_every": 100, "checkpoint_every": 1000, "probe_every": 1000,
    },
}  # fmt: skip

EXTENSIONS = ("none", "pi", "pi(stretch=True)", "pi(proportional=False)")
"""Extensions of an evaluation; all of them leave images of the trained size as they are."""


@options
class Config(RunConfig):
    """Train a vision transformer on images, then measure top-1 accuracy at other resolutions.

    --preset sets all other options; explicitly given options override it.
    """

    program = "vit"
    presets = PRESETS
    readers = ("folder",)
    budget = "epochs"
    first = ("preset", "pe", "data", "epochs", "size", "extend", "eval_sizes", "seed", "out", "resume")

    preset: str = option("demo", "demo: minutes on two cores; table: 14x14 patches; imagenet100, deit3_rope: ViT-S/16")
    pe: str = option(
        "rope_mixed",
        'positional encoding: "rope_mixed(base=100)", "learned+rope", your own: "my_module:mine"',
        shape=True,
    )
    data: str = option("fashion", "fashion, glyphs, folder:PATH (a subfolder per class) or tfds:NAME (prepared)")
    init: str = option("", "run folder whose trained weights training starts from; --size may differ")
    batch: int = option(48, "images per step, over all devices")
    eval_limit: int = option(0, "test images to evaluate on; 0 = all")
    extend: str = option(
        "",
        "extensions to evaluate with at other sizes: none, pi, pi(stretch=True); empty = none, for RoPE also the last",
    )

    size: int = option(28, "side of the training images, pixels", "data", at_least=1, copied=True)
    patch: int = option(4, "side of a patch, pixels", "model", at_least=1, shape=True)
    mlp_ratio: int = option(3, "channels inside the MLP, as a multiple of the width", "model", shape=True)
    pool: str = option("mean", "pooling: cls or mean", "model", choices=("cls", "mean"), shape=True)
    registers: int = option(0, "learned extra tokens without a position", "model", at_least=0, shape=True)
    layer_scale: float = option(0.0, "initial value of LayerScale; 0 = none", "model", at_least=0, shape=True)
    stochastic_depth: float = option(0.0, "drop probability of the last block", "training", at_least=0, below=1)

    epochs: int = option(18, "training epochs", "training", at_least=1)
    warmup: float = option(1.0, "epochs of linear warm-up", "training", at_least=0, tuned=True)
    loss: str = option(
        "softmax",
        "softmax: cross-entropy; bce: binary cross-entropy, every mixed-in class a full positive",
        "training",
        choices=("softmax", "bce"),
    )
    label_smoothing: float = option(0.1, "label smoothing", "training", at_least=0, below=1)
    probe_every: int = option(
        500,
        "steps between measurements of the attention entropy on training images; 0 = never",
        "evaluation and reports",
        at_least=0,
        free=True,
    )

    crop: bool = option(True, "random crop", "augmentation")
    flip: bool = option(True, "random horizontal flip", "augmentation")
    rand_augment: bool = option(False, "RandAugment(9, 0.5)", "augmentation")
    three_augment: bool = option(
        False, "3-Augment: one of grayscale, solarize and blur, then color jitter of 0.3", "augmentation"
    )
    repeats: int = option(
        1, "repeated augmentation: differently augmented copies of an image per batch", "augmentation", at_least=1
    )
    mixup: float = option(0.0, "Beta parameter of Mixup; 0 = off", "augmentation", at_least=0)
    cutmix: float = option(0.0, "Beta parameter of CutMix; 0 = off", "augmentation", at_least=0)
    erasing: float = option(0.0, "probability of random erasing", "augmentation", at_least=0, at_most=1)
    position_shift: float = option(
        0.0, "largest random shift of the positions along each axis, patches", "encoding", at_least=0, late=True
    )
    position_jitter: float = option(
        1.0, "largest random factor of the positions on each axis", "encoding", at_least=1, late=True
    )
    position_rescale: float = option(
        1.0, "largest random factor of the positions on both axes", "encoding", at_least=1, late=True
    )
    position_noise: float = option(
        0.0, "largest random shift of the position of a single patch, patches", "encoding", at_least=0, late=True
    )

    eval_sizes: tuple[int, ...] = option(
        (),
        "image sides to evaluate at, pixels; empty = 4 to 14 sizes, up to 16/7 of --size",
        "evaluation and reports",
        free=True,
    )

    @property
    def trained(self) -> str:
        """The side of the training images, in words."""
        return f"{self.size} px"

    @property
    def position_options(self) -> dict[str, float]:
        """The arguments of `pejax.augment_positions`; empty where it would leave the positions as they are."""
        names = ("shift", "jitter", "rescale", "noise")
        values = {name: getattr(self, f"position_{name}") for name in names}
        return {} if tuple(values.values()) == (0.0, 1.0, 1.0, 0.0) else values

    @property
    def tokens(self) -> int:
        """The tokens of a training image: its patches, registers and CLS."""
        return (self.size // self.patch) ** 2 + self.registers + (self.pool == "cls")

    def validated(self) -> Self:
        """Return the config after checking it."""
        super().validated()
        if self.repeats > self.batch:
            raise ValueError(f"repeats must be at most batch={self.batch}, got {self.repeats}")
        for extend in self.extensions:
            require_choice(dataclasses.replace(self, extend=extend), "extend", *EXTENSIONS)
        for side in (self.size, *self.eval_sizes):
            if side < self.patch or side % self.patch:
                raise ValueError(f"image sizes must be multiples of the patch, {self.patch}, got {side}")
        return self


PUBLISHED_SIZES, DEMO_SIZES = tuple(range(3, 17)), (4, 7, 10, 14)
"""Default sides of the evaluation, sevenths of the training size."""


def evaluation_sizes(config: Config) -> tuple[int, ...]:
    """Return the sides to evaluate at: those given, or 3/7, 4/7, ... 16/7 of the training size, rounded to patches.

    The preset `demo`, which ends within minutes, has four of them: 4/7, 1, 10/7 and 2.
    """
    if config.eval_sizes:
        return config.eval_sizes
    sevenths = DEMO_SIZES if config.preset == "demo" else PUBLISHED_SIZES
    patches = {max(1, round(config.size * k / (7 * config.patch))) for k in sevenths}
    return tuple(config.patch * n for n in sorted(patches))
