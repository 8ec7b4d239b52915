"""The settings of a run: fields of every program, and their rules."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pejax._parse import outside_names
from pejax.models.execution import REMAT
from pejax.specs import LayerPattern, parse_pattern
from train.devices.hosts import parse_hosts
from train.devices.mesh import parse_mesh
from train.engine.metrics import parse_profile

RUN_FIELDS = (
    "out", "resume", "overwrite", "stop_at", "checkpoint_every", "log_every", "spike", "profile", "eval_limit",
    "extend", "hosts", "devices", "mesh", "remat",
)  # fmt: skip
"""Fields of every program that may change when a run is resumed or evaluated."""

FIRST = ("preset", "pe", "data", "steps", "length", "extend", "eval_lengths", "seed", "out", "resume")
"""Options that matter most, where a program does not say others."""

OPTIMIZERS = ("adamw", "lamb")

_pattern = functools.cache(parse_pattern)  # a command reads its encodings in many places


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The fields of every program's config; each program has a frozen subclass with the fields it adds.

    The comment after a field is its text in `--help`.

    Attributes:
        program: name of its package, `python -m train.PROGRAM`.
        presets: settings of each `--preset`.
        model_fields: fields that determine the shapes of the parameters: copied from the run `init`, and must equal it.
        inherited: fields that are copied from the run `init` too, and may be overridden.
        run_fields: fields that may change when a run is resumed or evaluated, since they do not affect the weights.
        trained_with: run fields that do affect the weights: an evaluation may change them, a resumed run may not.
        later: fields that runs of earlier versions did not store; their defaults describe those runs.
        budget: field of the amount of training.
        first: options that matter most, which come first in `--help`.
    """

    program: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    model_fields: ClassVar[tuple[str, ...]]
    inherited: ClassVar[tuple[str, ...]] = ("data",)
    run_fields: ClassVar[tuple[str, ...]] = RUN_FIELDS
    trained_with: ClassVar[tuple[str, ...]] = ()
    later: ClassVar[tuple[str, ...]] = ("validation", "restarts")
    budget: ClassVar[str] = "steps"
    first: ClassVar[tuple[str, ...]] = FIRST

    preset: str = ""
    pe: str = "rope"  # encoding: "rope(base=100)"; "learned+rope"; over layers "rope*3+none*1"; own: "my_module:mine"
    data: str = ""
    seed: int = 0  # random seed of the initial weights, the order of the data and everything random in training
    out: str = ""  # run folder; empty = runs/PE-DATA-SEED
    resume: bool = False  # resume from the newest checkpoint; a finished run takes more --steps (vit: --epochs)
    restarts: tuple[int, ...] = dataclasses.field(default=(), metadata={"cmd": False})  # amounts before more were given
    overwrite: bool = False  # delete an earlier run in the run folder
    init: str = ""  # run folder whose trained weights training starts from

    width: int = 64  # channels of the residual stream
    layers: int = 3  # transformer layers
    heads: int = 4  # attention heads
    dtype: str = "float32"  # float32 or bfloat16: type of the computation; parameters are float32

    batch: int = 48  # examples per step, over all devices
    optimizer: str = "adamw"  # adamw or lamb
    lr: float = 2e-3  # peak learning rate
    lr_end: float = 0.0  # learning rate at the end of the cosine decay
    weight_decay: float = 0.05  # weight decay, of kernels only
    clip: float = 0.0  # clip the gradient to this global norm; 0 = no clipping
    accumulate: int = 1  # gradient accumulation: parts per batch, computed one after another to save memory
    ema: float = 0.0  # decay of an exponential moving average of the weights, used in evaluation; 0 = none

    hosts: str = ""  # processes: auto (SLURM, GKE, Cloud TPU) or ADDRESS:PORT,N,I for process I of N; empty = one
    devices: int = 0  # number of devices; 0 = all (on a CPU: as many cores as divide the batch)
    mesh: str = ""  # device mesh: "data=4,fsdp=2,tensor=1,sequence=1"; empty = all devices on data
    remat: str = "none"  # rematerialization: none, products (save only matmul outputs) or full

    checkpoint_every: int = 500  # steps between checkpoints
    log_every: int = 50  # steps between reports
    spike: float = 0.0  # stop when the loss exceeds this multiple of the median of the last 32 losses; 0 = off
    profile: str = ""  # STEP:COUNT: profile COUNT steps from STEP on, for TensorBoard or Perfetto
    stop_at: int = 0  # save and stop at this step, like an interrupted run; 0 = never
    eval_limit: int = 0  # test examples to evaluate on; 0 = all
    validation: float = 0.0  # fraction of the training data that is evaluated on, in place of training on it; 0 = none
    extend: str = "none"  # context extension in evaluation beyond the trained length or size

    @property
    def pattern(self) -> LayerPattern:
        """The encodings of all layers."""
        return _pattern(self.pe)

    @property
    def trained(self) -> str:
        """The trained length or size, in words: "28 px"."""
        raise NotImplementedError

    @property
    def default_name(self) -> str:
        """The name of the run folder where `out` is empty, without characters that file names should not have."""
        extent = "-" + self.trained.replace(" ", "") if self.init else ""
        return f"{self.pe}-{self.data.replace('/', '_')}-{self.seed}{extent}"

    @property
    def tokens(self) -> int:
        """The tokens of a training example; where that is unknown, a lower bound."""
        return 1

    def validated(self) -> Self:
        """Return the config after checking it; a program adds checks of its own.

        Raises:
            ValueError: naming the field, the rule and the value.
        """
        _ = self.pattern
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{field.name} must be a finite number, got {value}")
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, int) and one >= 2**31 and field.name != "seed":
                    raise ValueError(f"{field.name} must be below {2**31}, got {one}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be from 0 to {2**32 - 1}, got {self.seed}")
        require_at_least(self, 1, "width", "layers", "heads", "batch", "accumulate", "checkpoint_every", "log_every")
        require_at_least(self, 0, "weight_decay", "clip", "spike", "lr_end", "devices", "stop_at", "eval_limit")
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be a fraction from 0 to below 1, got {self.validation}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be from 0 to below 1, got {self.ema}")
        if self.batch % self.accumulate:
            raise ValueError(f"batch must be a multiple of accumulate={self.accumulate}, got {self.batch}")
        if self.mesh:
            parse_mesh(self.mesh)
        parse_profile(self.profile)
        if self.hosts not in ("", "auto"):
            parse_hosts(self.hosts)
        require_choice(self, "optimizer", *OPTIMIZERS)
        require_choice(self, "dtype", "float32", "bfloat16")
        require_choice(self, "remat", *REMAT)
        return self


Kind = TypeVar("Kind", bound=RunConfig)


def require_at_least(config: Any, least: int, *names: str) -> None:
    """Check that fields are at least `least`.

    Raises:
        ValueError: naming the field, the rule and the value.
    """
    rule = "not be negative" if least == 0 else f"be at least {least}"
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must {rule}, got {getattr(config, name)}")


def require_choice(config: Any, name: str, *choices: str) -> None:
    """Check that a field has one of a few values.

    Raises:
        ValueError: naming the field, the values and the one received.
    """
    if getattr(config, name) not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(config, name)!r}")


def run_folder(config: RunConfig) -> Path:
    """Return the folder of the run's files."""
    return Path(config.out) if config.out else Path("runs") / re.sub(r"[^\w.=,-]+", "_", config.default_name)


def specs_of(config: RunConfig) -> dict[str, str]:
    """Return the encodings of a config by field."""
    return {name: getattr(config, name) for name in ("pe", "decoder_pe", "cross_pe") if hasattr(config, name)}


def own_specs(config: RunConfig) -> dict[str, str]:
    """Return, by field, those that name an encoding in a module of the user's."""
    return {name: spec for name, spec in specs_of(config).items() if outside_names(spec)}


def split_list(text: str, name: str) -> tuple[str, ...]:
    """Split a list of specs at the commas outside of parentheses.

    Raises:
        ValueError: an empty term, the same one twice, or parentheses that do not match.
    """
    found, depth, term = [], 0, ""
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append(term.strip())
            term = ""
        else:
            term += character
    found.append(term.strip())
    if depth or not all(found):
        raise ValueError(f"{name} must be a list separated by commas, got {text!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must name each once, got {text!r}")
    return tuple(found)
