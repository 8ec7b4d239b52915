"""The settings of a run: the options of every trainer, and their rules.

Nothing here is heavy to import; the few rules that need the library import it when they are asked.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from train.engine.options import names_of, option, options, require_rules

if TYPE_CHECKING:
    from pejax.specs import LayerPattern

FIRST = ("preset", "pe", "data", "steps", "length", "extend", "eval_lengths", "seed", "out", "resume")
"""Options that matter most, where a program does not say others."""


@functools.cache  # a command reads its encodings in many places
def _pattern(pe: str) -> "LayerPattern":
    from pejax.specs import parse_pattern

    return parse_pattern(pe)


@options
class RunConfig:
    """The options of every trainer; each has a class of its own with those that it adds.

    Attributes:
        program: name of its package, `python -m train.PROGRAM`.
        presets: settings of each `--preset`.
        former: options that earlier versions had and that changed nothing, with their defaults then.
        budget: field of the amount of training.
        first: options that matter most, which come first in `--help`.
        readers: names of data that read a path.
    """

    program: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    former: ClassVar[Mapping[str, Any]] = {}
    budget: ClassVar[str] = "steps"
    first: ClassVar[tuple[str, ...]] = FIRST
    readers: ClassVar[tuple[str, ...]] = ()

    preset: str = option("", "", "run", series=True)
    pe: str = option(
        "rope",
        'encoding: "rope(base=100)"; "learned+rope"; over layers "rope*3+none*1"; own: "my_module:mine"',
        "encoding",
        series=True,
    )
    data: str = option("", "", "data", copied=True)
    seed: int = option(
        0,
        "random seed of the initial weights, the order of the data and everything random in training",
        "run",
        at_least=0,
        at_most=2**32 - 1,
        series=True,
    )
    out: str = option("", "run folder; empty = runs/PE-DATA-SEED", "run", free=True)
    resume: bool = option(
        False, "resume from the newest checkpoint; a finished run takes more --steps (vit: --epochs)", "run", free=True
    )
    restarts: tuple[int, ...] = option((), recorded=True, late=True)  # amounts of training before more were given
    overwrite: bool = option(False, "delete an earlier run in the run folder", "run", free=True)
    init: str = option("", "run folder whose trained weights training starts from", "run", series=True)

    width: int = option(64, "channels of the residual stream", "model", at_least=1, shape=True)
    layers: int = option(3, "transformer layers", "model", at_least=1, shape=True)
    heads: int = option(4, "attention heads", "model", at_least=1, shape=True)
    dtype: str = option(
        "float32",
        "float32 or bfloat16: type of the computation; parameters are float32",
        "devices and memory",
        choices=("float32", "bfloat16"),
    )

    batch: int = option(48, "examples per step, over all devices", "training", at_least=1)
    optimizer: str = option("adamw", "adamw or lamb", "training", choices=("adamw", "lamb"), tuned=True)
    lr: float = option(2e-3, "peak learning rate", "training", above=0, tuned=True)
    lr_end: float = option(0.0, "learning rate at the end of the cosine decay", "training", at_least=0, tuned=True)
    weight_decay: float = option(0.05, "weight decay, of kernels only", "training", at_least=0, tuned=True)
    clip: float = option(
        0.0, "clip the gradient to this global norm; 0 = no clipping", "training", at_least=0, tuned=True
    )
    accumulate: int = option(
        1,
        "gradient accumulation: parts per batch, computed one after another to save memory",
        "devices and memory",
        at_least=1,
    )
    ema: float = option(
        0.0,
        "decay of an exponential moving average of the weights, used in evaluation; 0 = none",
        "training",
        at_least=0,
        below=1,
    )

    hosts: str = option(
        "",
        "processes: auto (SLURM, GKE, Cloud TPU) or ADDRESS:PORT,N,I for process I of N; empty = one",
        "devices and memory",
        free=True,
    )
    devices: int = option(
        0,
        "number of devices; 0 = all (on a CPU: as many cores as divide the batch)",
        "devices and memory",
        at_least=0,
        free=True,
    )
    mesh: str = option(
        "",
        'device mesh: "data=4,fsdp=2,tensor=1,sequence=1"; empty = all devices on data',
        "devices and memory",
        free=True,
    )
    programs: str = option(
        "auto",
        "folder that keeps compiled programs for the next run; auto: on a GPU ~/.cache/pejax/programs; none",
        "devices and memory",
        free=True,
        late=True,
    )
    remat: str = option(
        "none",
        "rematerialization: none, products (save only matmul outputs) or full",
        "devices and memory",
        choices=("none", "products", "full"),
        free=True,
    )

    checkpoint_every: int = option(500, "steps between checkpoints", "run", at_least=1, free=True)
    log_every: int = option(50, "steps between reports", "evaluation and reports", at_least=1, free=True)
    spike: float = option(
        0.0,
        "stop when the loss exceeds this multiple of the median of the last 32 losses; 0 = off",
        "training",
        at_least=0,
        free=True,
    )
    profile: str = option(
        "",
        "STEP:COUNT: profile COUNT steps from STEP on, for TensorBoard or Perfetto",
        "evaluation and reports",
        free=True,
    )
    stop_at: int = option(
        0, "save and stop at this step, like an interrupted run; 0 = never", "run", at_least=0, free=True
    )
    eval_limit: int = option(
        0, "test examples to evaluate on; 0 = all", "evaluation and reports", at_least=0, free=True
    )
    validation: float = option(
        0.0,
        "fraction of the training data that is evaluated on, in place of training on it; 0 = none",
        "data",
        at_least=0,
        below=1,
        series=True,
        late=True,
    )
    extend: str = option(
        "none", "context extension in evaluation beyond the trained length or size", "evaluation and reports", free=True
    )

    @property
    def pattern(self) -> "LayerPattern":
        """The encodings of all layers."""
        return _pattern(self.pe)

    @property
    def extensions(self) -> tuple[str, ...]:
        """The context extensions of the evaluation, in the order given; where training has one, it is the first.

        Raises:
            ValueError: `extend` is no list.
        """
        return split_list(self.extend, "extend") if self.extend else ()

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
        from train.devices.hosts import parse_hosts
        from train.devices.mesh import parse_mesh
        from train.engine.metrics import parse_profile

        _ = self.pattern, self.extensions
        require_rules(self)
        if self.batch % self.accumulate:
            raise ValueError(f"batch must be a multiple of accumulate={self.accumulate}, got {self.batch}")
        if self.mesh:
            parse_mesh(self.mesh)
        parse_profile(self.profile)
        if self.hosts not in ("", "auto"):
            parse_hosts(self.hosts)
        return self

    def weights_settings(self) -> dict[str, Any]:
        """Return the settings that the weights depend on, by name: of a list of extensions, the one in training."""
        names = {*names_of(self, "free")} - {*names_of(self, "trains")}
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in names}
        return {**values, "extend": self.extensions[0]} if "extend" in values and self.extensions else values


Kind = TypeVar("Kind", bound=RunConfig)


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


def split_list(text: str, name: str) -> tuple[str, ...]:
    """Split a list of specs at the commas outside of parentheses.

    Raises:
        ValueError: an empty term, the same one twice, or parentheses that do not match.
    """
    terms, depth, term = [], 0, ""
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            terms.append(term.strip())
            term = ""
        else:
            term += character
    terms.append(term.strip())
    if depth or not all(terms):
        raise ValueError(f"{name} must be a list separated by commas, got {text!r}")
    if len(set(terms)) < len(terms):
        raise ValueError(f"{name} must name each once, got {text!r}")
    return tuple(terms)
