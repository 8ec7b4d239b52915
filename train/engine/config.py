"""The settings of a run: the fields every program shares, and the way from a command line to them and back."""

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pejax._make import parse_spec
from pejax.models.execution import REMAT
from train.devices.hosts import parse_hosts
from train.devices.mesh import parse_mesh
from train.engine.files import write_whole
from train.engine.metrics import parse_profile
from train.engine.parser import Parser

RUN_FIELDS = (
    "out", "resume", "overwrite", "stop_at", "checkpoint_every", "log_every", "spike", "profile", "eval_limit",
    "extend", "hosts", "devices", "mesh", "remat",
)  # fmt: skip
"""Fields of every program that may change between a run and its continuation."""

OPTIMIZERS = ("adamw", "lamb")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What the configs of all programs share; each is a frozen dataclass below this one, with the fields it adds.

    Attributes:
        program: its module, `python -m train.PROGRAM`.
        presets: what `--preset` sets, by name.
        model_fields: what decides the shape of the parameters: taken from the run `init`, and must agree with it.
        inherited: also taken from the run `init`, and free to differ from it.
        run_fields: what may change between a run and its evaluation or continuation: none of it reaches the weights,
        trained_with: but for these, which an evaluation may change and a continuation may not.
    """

    program: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    model_fields: ClassVar[tuple[str, ...]]
    inherited: ClassVar[tuple[str, ...]] = ("data",)
    run_fields: ClassVar[tuple[str, ...]] = RUN_FIELDS
    trained_with: ClassVar[tuple[str, ...]] = ()

    preset: str = ""
    pe: str = "rope"  # the encoding: a name, with arguments where wanted: "rope(base=100)"
    data: str = ""
    seed: int = 0  # of the initial weights, the order of the data and everything drawn while training
    out: str = ""  # run folder; runs/PE-DATA-SEED when empty
    resume: bool = False  # continue from the newest checkpoint of the run folder
    overwrite: bool = False  # delete what an earlier run left in the run folder
    init: str = ""  # run folder whose trained weights to start from

    width: int = 64  # channels of the residual stream
    layers: int = 3
    heads: int = 4
    dtype: str = "float32"  # of the computation; parameters are float32

    batch: int = 48  # examples in a step, over all devices
    optimizer: str = "adamw"  # adamw or lamb
    lr: float = 2e-3  # peak learning rate
    lr_end: float = 0.0  # learning rate at the end of the cosine decay
    weight_decay: float = 0.05  # of kernels; positions, embeddings, CLS, registers, norms and biases get none
    clip: float = 0.0  # global norm of the gradient; 0 = no clipping
    accumulate: int = 1  # compute a step in so many parts of the batch, one after another: memory for time
    ema: float = 0.0  # decay of an average of the weights, which is then what is evaluated; 0 = none

    hosts: str = ""  # auto (SLURM, GKE, Cloud TPU), or ADDRESS:PORT,N,I: process I of N; empty = one process
    devices: int = 0  # how many of the visible devices to use; 0 = all, of a CPU's cores those that divide the batch
    mesh: str = ""  # how they share the work: "data=4,fsdp=2,tensor=1,sequence=1"; empty = all of them on data
    remat: str = "none"  # computed again: none (but norms, activations), products (all but products) or full

    checkpoint_every: int = 500  # steps
    log_every: int = 50  # steps
    spike: float = 0.0  # a loss over so many times the median of the last 32 stops the run, as NaN does; 0 = off
    profile: str = ""  # STEP:COUNT traces so many steps into the run folder, for TensorBoard or Perfetto
    stop_at: int = 0  # save and stop at this step, as an interruption would; 0 = never
    eval_limit: int = 0  # evaluate on this many test examples; 0 = all
    extend: str = "none"  # how to evaluate beyond the trained extent

    @property
    def trained(self) -> str:
        """The extent trained at, in words: "28 px"."""
        raise NotImplementedError

    @property
    def tokens(self) -> int:
        """The tokens of a training example, at least."""
        return 1

    def validated(self) -> Self:
        """Return the config, once it is known to make sense by itself; a program adds its own rules.

        Raises:
            ValueError: naming the field, the rule and the value.
        """
        parse_spec(self.pe)
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


def require_at_least(config: RunConfig, least: int, *names: str) -> None:
    """Check fields that have a lower bound, 0 or 1.

    Raises:
        ValueError: naming the field, the rule and the value.
    """
    rule = "not be negative" if least == 0 else f"be at least {least}"
    for name in names:
        if getattr(config, name) < least:
            raise ValueError(f"{name} must {rule}, got {getattr(config, name)}")


def require_choice(config: RunConfig, name: str, *choices: str) -> None:
    """Check a field that has a few possible values.

    Raises:
        ValueError: naming the field, the values and the one received.
    """
    if getattr(config, name) not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(config, name)!r}")


def parse(kind: type[Kind], argv: Sequence[str] | None = None) -> Kind:
    """Read the command line: the preset, or the run that is continued or built upon, then the options given.

    Args:
        kind: the config of the program.
        argv: the options; those of the process when None.

    Raises:
        SystemExit: status 2, after one line that names the option and the rule.
        ValueError: an option whose value breaks a rule.
    """
    first = _parse(argv, kind())
    require_choice(first, "preset", *kind.presets)
    base = dataclasses.replace(kind(), preset=first.preset, **kind.presets[first.preset])
    if first.init:
        before = load_config(kind, Path(first.init))
        base = dataclasses.replace(
            base, **{name: getattr(before, name) for name in (*kind.model_fields, *kind.inherited)}
        )
    config = _parse(argv, base).validated()
    if config.resume and (run_folder(config) / "config.json").is_file():
        kept = {name: getattr(config, name) for name in ("out", "resume", "overwrite", "stop_at", "hosts")}
        stored = dataclasses.replace(load_config(kind, run_folder(config)), **kept)
        config = _parse(argv, stored).validated()
    return config


def _parse(argv: Sequence[str] | None, default: Kind) -> Kind:
    parser = Parser(prog=f"python -m train.{default.program}")
    parser.add_arguments(type(default), dest="config", default=default)
    return parser.parse_args(argv).config


def run_folder(config: RunConfig) -> Path:
    """Return where the run keeps its files."""
    if config.out:
        return Path(config.out)
    extent = "-" + config.trained.replace(" ", "") if config.init else ""
    name = f"{config.pe}-{config.data.replace('/', '_')}-{config.seed}{extent}"
    return Path("runs") / re.sub(r"[^\w.=,-]+", "_", name)


def save_config(config: RunConfig, folder: Path) -> None:
    """Write the config into the run folder as JSON, with the program it belongs to."""
    stored = {"program": config.program, **dataclasses.asdict(config)}
    write_whole(folder / "config.json", json.dumps(stored, indent=2) + "\n")


def load_config(kind: type[Kind], folder: Path) -> Kind:
    """Read the config of a run folder.

    Raises:
        ValueError: no config there, one of another program, or one of another version of this program.
    """
    stored = _stored(folder)
    if stored["program"] != kind.program:
        raise ValueError(f"{folder} must hold a run of train.{kind.program}, got one of train.{stored['program']}")
    del stored["program"]
    try:
        return from_dict(kind, stored)
    except ValueError as wrong:
        raise ValueError(f"{folder / 'config.json'}: {wrong}") from None


def program_of(folder: Path) -> str:
    """Return the name of the program that made a run folder.

    Raises:
        ValueError: no config there.
    """
    return _stored(folder)["program"]


def _stored(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"a run folder holds config.json, got {folder} without one")
    try:
        stored = json.loads(path.read_text())
    except ValueError as broken:  # no JSON, or no UTF-8
        raise ValueError(f"config.json must be JSON, got {path}: {broken}") from None
    if not isinstance(stored, dict):
        raise ValueError(f"config.json must hold an object, got {path} with a {type(stored).__name__}")
    return {"program": "vit", **stored}  # the first runs did not say: there was no other


def from_dict(kind: type[Kind], stored: Mapping[str, Any]) -> Kind:
    """Return the config that was stored as JSON, which has lists for tuples.

    Raises:
        ValueError: other fields than this program has, or a value of another type.
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    if set(stored) != fields:
        odd = sorted(set(stored) ^ fields)[0]
        raise ValueError(f"a stored config must have this program's fields, got a difference in {odd!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    for name, default in dataclasses.asdict(kind()).items():
        value, number = values[name], isinstance(default, float) and type(values[name]) is int
        alike = type(value) is type(default) and (default != () or all(type(one) is int for one in value))
        if not alike and not number:
            raise ValueError(f"{name} must be of type {type(default).__name__}, got {value!r}")
    return kind(**values)


def require_same(stored: Kind, config: Kind, also: Sequence[str] = ()) -> None:
    """Check that a checkpoint belongs to this configuration.

    Args:
        stored: with the checkpoint.
        config: of this run.
        also: run fields that must agree too.

    Raises:
        ValueError: naming the first field that differs and both its values.
    """
    for field in dataclasses.fields(config):
        was, now = getattr(stored, field.name), getattr(config, field.name)
        if (field.name in also or field.name not in config.run_fields) and was != now:
            raise ValueError(f"the checkpoint was made with {field.name}={was!r}, this run has {field.name}={now!r}")


def require_fitting(before: Kind, config: Kind) -> None:
    """Check that the model of the run `init` is of this run's kind.

    Raises:
        ValueError: naming the first field that differs and both its values.
    """
    for name in config.model_fields:
        was, now = getattr(before, name), getattr(config, name)
        if was != now:
            raise ValueError(f"the model of {config.init} has {name}={was!r}, this run has {name}={now!r}")


def command(config: RunConfig) -> str:
    """Return the command that continues this run."""
    hosts = f" --hosts={config.hosts}" if config.hosts else ""
    return f"python -m train.{config.program} --resume --out={shlex.quote(str(run_folder(config)))}{hosts}"
