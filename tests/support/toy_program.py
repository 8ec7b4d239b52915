"""The smallest program of the trainers: a line fitted to numbers, one file of config, data, loss and evaluation."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grain
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.table import Table

from train.engine import session
from train.engine.config import RunConfig
from train.engine.files import write_atomic
from train.engine.options import option, options
from train.engine.progress import TOKENS
from train.engine.task import Program, Split, Task


@options
class Config(RunConfig):
    """Fit a line."""

    program: ClassVar[str] = "toy"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": {}, "long": {"steps": 40}}

    preset: str = option("demo", "demo or long")
    pe: str = option("rope", copied=True)
    data: str = option("numbers")
    batch: int = option(8)
    width: int = option(4)
    layers: int = option(3, shape=False)
    heads: int = option(4, shape=False)
    checkpoint_every: int = option(3)
    log_every: int = option(2)
    length: int = option(16, copied=True, at_least=1)
    steps: int = option(8, at_least=1)
    probe_every: int = option(0, free=True)
    spoilt: str = option("1", "factor of the batch of step 37; a text, for nan is no number that an option takes")

    @property
    def trained(self) -> str:
        """The length, in words."""
        return f"{self.length} tokens"


@dataclasses.dataclass(frozen=True)
class Found:
    """The bits of the parameters."""

    name: str
    step: int
    kernel: list[str]
    steps: int = 0
    run: str = ""

    @property
    def stem(self) -> str:
        """Name of its file, without suffix."""
        return f"results-step{self.step}" if self.step < self.steps else "results"

    def table(self) -> Table:
        """Return the table for the terminal."""
        return Table(title=f"{self.name} after {self.step} steps")

    @staticmethod
    def tables(runs: "Sequence[Found]") -> list[Table]:
        """Return the tables for the terminal."""
        return [run.table() for run in runs]

    def save(self, folder: Path, runs: "Sequence[Found]" = ()) -> None:
        """Write the JSON."""
        write_atomic(folder / f"{self.stem}.json", json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> "Found":
        """Read the JSON."""
        return cls(**json.loads(path.read_text()))

    @classmethod
    def compare(cls, files: Sequence[Path], to: Path) -> None:
        """Write what was found, one run a line."""
        Path(f"{to}.md").write_text("".join(json.loads(file.read_text())["name"] + "\n" for file in files))


def make_task(config: Config) -> Task:
    """Return the task: predict the sum of random numbers."""
    split = Split(lambda rngs: nnx.Linear(config.width, 1, rngs=rngs))

    def draw(_: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"x": rng.standard_normal((config.batch, config.width), np.float32)}

    def batches(step: int, rows: range) -> Any:
        drawn = grain.MapDataset.range(8).seed(config.seed).repeat().random_map(draw)
        factor = lambda at: np.float32(config.spoilt if at == 36 else "1")
        drawn = drawn.map_with_index(lambda at, batch: {"x": batch["x"] * factor(at)})[step:]
        return iter(drawn.map(lambda batch: {"x": batch["x"][rows.start : rows.stop]}).to_iter_dataset())

    def loss(params: Any, batch: Mapping[str, Any], key: Any, *, execution: Any) -> Any:
        x = batch["x"] + 0.1 * jax.random.normal(key, batch["x"].shape)
        losses = (split.model(params)(x)[:, 0] - batch["x"].sum(-1)) ** 2
        tokens = jnp.float32(config.batch * config.length)
        return losses.mean(), {"loss": config.length * losses.sum(), "count": tokens}

    return Task(
        split=split,
        identity=f"numbers of width {config.width}",
        about=f"length {config.length}",
        unit=TOKENS,
        sums=("loss", "count"),
        steps=config.steps,
        restarts=config.restarts,
        per_epoch=4,
        warmup=2,
        batches=batches,
        loss=loss,
        kv_heads=config.heads,
        length=config.length,
        laws=lambda params: "laws: none",
        init_split=lambda before: make_task(before).split,
        params_from_init=lambda split, params: params,
        evaluate=lambda params, *, step, mesh, console: [
            Found(config.pe, step, [float(x).hex() for x in np.ravel(params["kernel"])])
        ],
        probe=lambda params: {"size": float(jnp.abs(params["kernel"]).sum())},
        probe_every=config.probe_every,
    )


PROGRAM = Program(config=Config, task=make_task, results=Found)


def train(out: Path, *flags: str) -> int:
    """Run the command line with a run folder, and return its status."""
    return session.main(PROGRAM, [f"--out={out}", *flags])
