"""The settings of a run: one frozen dataclass, its presets, and the way from a command line to it."""

import contextlib
import dataclasses
import difflib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import simple_parsing

from pejax.registry import parse_spec


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a vision transformer on images, then measure top-1 at fourteen resolutions it was not trained at.

    --preset sets every other option; options given beside it win.
    """

    preset: str = "demo"  # demo: minutes on two cores; table: the published token grids; vit_s16: 224 px, ViT-S/16
    pe: str = "rope_mixed"  # the encoding: a name, with arguments where wanted: "rope_mixed(base=100)"
    data: str = "fashion"  # fashion, glyphs, folder:PATH (class sub-folders) or tfds:NAME (prepared)
    seed: int = 0  # of the initial weights, the order of the images and everything drawn while training
    out: str = ""  # run folder; runs/PE-DATA-SEED when empty
    resume: bool = False  # continue from the newest checkpoint of the run folder
    overwrite: bool = False  # delete what an earlier run left in the run folder
    init: str = ""  # run folder whose trained weights to start from, at another --size where wanted

    size: int = 28  # side of the training images, pixels
    patch: int = 4  # side of a patch, pixels
    width: int = 64  # channels of the residual stream
    layers: int = 3
    heads: int = 4
    mlp_ratio: int = 3
    pool: str = "mean"  # cls or mean
    registers: int = 0  # learned tokens that have no position
    layer_scale: float = 0.0  # initial value of LayerScale; 0 = none
    stochastic_depth: float = 0.0  # probability of dropping the deepest block
    dtype: str = "float32"  # of the computation; parameters are float32

    epochs: int = 18
    batch: int = 48  # images in a step, over all devices
    lr: float = 2e-3  # peak learning rate
    warmup: float = 1.0  # epochs of linear warm-up
    weight_decay: float = 0.05  # of kernels; positions, CLS, registers, norms and biases get none
    label_smoothing: float = 0.1
    clip: float = 0.0  # global norm of the gradient; 0 = no clipping
    devices: int = 0  # how many of the visible devices to use; 0 = all

    crop: bool = True  # random crop
    flip: bool = True  # random horizontal flip
    rand_augment: bool = False  # RandAugment(9, 0.5)
    mixup: float = 0.0  # Beta parameter of Mixup; 0 = off
    cutmix: float = 0.0  # Beta parameter of CutMix; 0 = off
    erasing: float = 0.0  # probability of random erasing

    checkpoint_every: int = 500  # steps
    log_every: int = 50  # steps
    stop_at: int = 0  # save and stop at this step, as an interruption would; 0 = never
    eval_sizes: tuple[int, ...] = ()  # image sides to evaluate at; empty = fourteen, 3/7 to 16/7 of the training size
    eval_limit: int = 0  # evaluate on this many test images; 0 = all
    extend: str = "none"  # pi: beyond the trained size, squeeze positions instead of extrapolating or resizing


RECIPE = {
    "pool": "cls", "mlp_ratio": 4, "label_smoothing": 0.1,
    "rand_augment": True, "mixup": 0.8, "cutmix": 1.0, "erasing": 0.25,
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "demo": {},
    "table": {"patch": 2, "width": 128, "layers": 6, "epochs": 100, "batch": 128, "lr": 1e-3, "warmup": 20.0, **RECIPE},
    "vit_s16": {
        "data": "folder:imagenet100", "size": 224, "patch": 16, "width": 384, "layers": 12, "heads": 6,
        "epochs": 100, "batch": 256, "lr": 1e-3, "warmup": 20.0, **RECIPE,
    },
}  # fmt: skip

MODEL_FIELDS = (
    "pe", "patch", "width", "layers", "heads", "mlp_ratio", "pool", "registers", "layer_scale",
)  # fmt: skip
"""What decides the shape of the parameters, the training size apart."""

RUN_FIELDS = (
    "out", "resume", "overwrite", "stop_at", "checkpoint_every", "log_every", "eval_sizes", "eval_limit", "extend",
    "devices",
)  # fmt: skip
"""What may change between a run and its continuation: none of it reaches the weights."""


class Parser(simple_parsing.ArgumentParser):
    """A parser whose every complaint is one line, `error: ...`, and exit status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=simple_parsing.SimpleHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Print the complaint, with the nearest option where one is unknown, and exit."""
        unknown = re.match(r"unrecognized arguments: (--\w+)", message)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[1], known, n=1, cutoff=0.0)
            message = f"unknown option {unknown[1]}; did you mean {near[0]}?"
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(2)


def parse(argv: Sequence[str] | None = None) -> Config:
    """Read the command line: the preset, or the run that is continued or built upon, then the options given.

    Raises:
        SystemExit: status 2, after one line that names the option and the rule.
        ValueError: an option whose value breaks a rule.
    """
    first = _parse(argv, Config())
    if first.preset not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {first.preset!r}")
    base = dataclasses.replace(Config(), preset=first.preset, **PRESETS[first.preset])
    if first.init:
        stored = dataclasses.asdict(load_config(Path(first.init)))
        base = dataclasses.replace(base, **{name: stored[name] for name in (*MODEL_FIELDS, "data", "size")})
    config = validated(_parse(argv, base))
    if config.resume and (run_folder(config) / "config.json").is_file():
        kept = {name: getattr(config, name) for name in RUN_FIELDS}
        stored = dataclasses.replace(load_config(run_folder(config)), **kept)
        config = validated(_parse(argv, stored))
    return config


def _parse(argv: Sequence[str] | None, default: Config) -> Config:
    parser = Parser(prog="python -m train.vit")
    parser.add_arguments(Config, dest="config", default=default)
    return parser.parse_args(argv).config


def validated(config: Config) -> Config:
    """Return the config, once it is known to make sense by itself.

    Raises:
        ValueError: naming the field, the rule and the value.
    """
    parse_spec(config.pe)
    for name in ("size", "patch", "width", "layers", "heads", "epochs", "batch", "checkpoint_every", "log_every"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(config, name)}")
    for name in ("warmup", "weight_decay", "clip", "devices", "mixup", "cutmix", "stop_at", "eval_limit", "registers"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name} must not be negative, got {getattr(config, name)}")
    for name in ("label_smoothing", "erasing", "stochastic_depth"):
        if not 0 <= getattr(config, name) < 1 and not (name == "erasing" and config.erasing == 1):
            raise ValueError(f"{name} must be a probability below 1, got {getattr(config, name)}")
    if config.lr <= 0:
        raise ValueError(f"lr must be positive, got {config.lr}")
    for name, choices in (("extend", ("none", "pi")), ("pool", ("cls", "mean")), ("dtype", ("float32", "bfloat16"))):
        if getattr(config, name) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(config, name)!r}")
    for side in (config.size, *config.eval_sizes):
        if side < config.patch or side % config.patch:
            raise ValueError(f"image sizes must be multiples of the patch, {config.patch}, got {side}")
    return config


def evaluation_sizes(config: Config) -> tuple[int, ...]:
    """Return the sides to evaluate at: those asked for, or 3/7, 4/7, ... 16/7 of the training size in whole patches."""
    if config.eval_sizes:
        return config.eval_sizes
    patches = {max(1, round(config.size * k / (7 * config.patch))) for k in range(3, 17)}
    return tuple(config.patch * n for n in sorted(patches))


def run_folder(config: Config) -> Path:
    """Return where the run keeps its files."""
    if config.out:
        return Path(config.out)
    name = f"{config.pe}-{config.data.replace('/', '_')}-{config.seed}" + (f"-{config.size}px" if config.init else "")
    return Path("runs") / re.sub(r"[^\w.=,-]+", "_", name)


def save_config(config: Config, folder: Path) -> None:
    """Write the config into the run folder as JSON."""
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n")


def load_config(folder: Path) -> Config:
    """Read the config of a run folder.

    Raises:
        ValueError: no config there, or one of another version of this program.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"a run folder holds config.json, got {folder} without one")
    try:
        return from_dict(json.loads(path.read_text()))
    except json.JSONDecodeError as broken:
        raise ValueError(f"config.json must be JSON, got {path}: {broken}") from None


def from_dict(stored: dict[str, Any]) -> Config:
    """Return the config that was stored as JSON."""
    fields = {field.name for field in dataclasses.fields(Config)}
    if set(stored) != fields:
        odd = sorted(set(stored) ^ fields)[0]
        raise ValueError(f"a stored config must have this program's fields, got a difference in {odd!r}")
    return Config(**{**stored, "eval_sizes": tuple(stored["eval_sizes"])})


def require_same(stored: Config, config: Config) -> None:
    """Check that a checkpoint belongs to this configuration.

    Raises:
        ValueError: naming the first field that differs and both its values.
    """
    for field in dataclasses.fields(Config):
        was, now = getattr(stored, field.name), getattr(config, field.name)
        if field.name not in RUN_FIELDS and was != now:
            raise ValueError(f"the checkpoint was made with {field.name}={was!r}, this run has {field.name}={now!r}")


def command(config: Config) -> str:
    """Return the command that continues this run."""
    return f"python -m train.vit --resume --out={shlex.quote(str(run_folder(config)))}"


@contextlib.contextmanager
def friendly(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these kinds into one line, `error: ...`, and exit status 2; Ctrl-C into status 130."""
    try:
        yield
    except kinds as wrong:
        sys.stderr.write(f"error: {' '.join(str(wrong).split())}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
