"""Fine-tune a loaded language model on text, with or without an extension of its positions.

    python -m train.tune --model=DIR_OR_GGUF --data=file:book.txt           low-rank changes (LoRA)
    python -m train.tune --model=DIR_OR_GGUF --extend=pi --length=16384     at a longer length
    python -m train.tune --model=DIR_OR_GGUF --method=full --steps=1000     all parameters
    python -m train.tune --resume --out=runs/NAME                           resumes a stopped run

The run folder then has what a run of `train.lm` has, and the model in `model`, a folder that `pejax.interop` and
transformers load.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console

from pejax import interop
from pejax.models import Execution
from train.data.text.loading import Corpus, contiguous, load_text
from train.devices.hosts import is_main_process
from train.devices.mesh import make_mesh, parameter_shardings
from train.engine import session
from train.engine.config import run_folder
from train.engine.loop import Metrics
from train.engine.run_files import MODEL, delete_part
from train.engine.task import Program, Split, Task
from train.lm.evaluate import evaluate
from train.lm.program import text_task
from train.lm.results import KIND, PerplexityResults
from train.tune.config import Config
from train.tune.lora import LowRank, merged_params
from train.tune.subject import Loaded, retokenized_corpus


class Tuned(Split):
    """The parameters that are trained, beside the loaded model: all of it, or low-rank changes.

    Args:
        config: settings of the run.
        mesh: the devices that have the parameters.

    Raises:
        ValueError: raised by `Loaded`.
    """

    def __init__(self, config: Config, mesh: Mesh) -> None:
        self.config = config
        self.subject = Loaded(config.model, config.extend, config.dtype)
        self.losses, self.refusal = self.subject.losses, self.subject.refusal
        self.mean_loss = self.subject.mean_loss
        shardings = parameter_shardings(self.subject.variables, mesh)
        self.frozen = jax.device_put(self.subject.loaded, shardings)
        del self.subject.loaded
        self.low_rank = config.method == "lora"
        if self.low_rank:
            super().__init__(lambda rngs: LowRank(self.subject.shapes, config.rank, rngs=rngs))
        else:
            self.prototype = self.subject.prototype
            self.variables, self.shapes = self.subject.variables, self.subject.shapes

    def init(self, key: Array, shardings: Any = None) -> Any:
        """Return the parameters before training, which are not random for the loaded model."""
        if self.low_rank:
            return super().init(key, shardings)
        params, self.frozen = self.frozen, None
        return params

    def model_params(self, params: Any, frozen: Any) -> Any:
        """Return the parameters of the model."""
        return merged_params(frozen, params) if self.low_rank else params

    def loss(
        self,
        params: Any,
        batch: Mapping[str, Array],
        key: Array,
        *,
        execution: Execution = Execution(),
        frozen: Any = None,
    ) -> tuple[Array, Metrics]:
        """Return the mean cross-entropy of the next token, in nats, and the sums over the batch.

        The arguments are those of `train.lm.model.Language.loss`, and `frozen`, the loaded parameters with LoRA.
        """
        del key
        return self.mean_loss(self.model_params(params, frozen), batch, execution)


def make_task(config: Config) -> Task:
    """Read the text and load the model.

    Raises:
        ValueError: the config does not fit the text or the model.
    """
    mesh = make_mesh(config.devices, config.mesh, config.batch // config.accumulate)
    tuned = Tuned(config, mesh)
    model = tuned.subject.config
    corpus = retokenized_corpus(load_text(config.data, config.validation), config.model, model.vocab)
    corpus = contiguous(corpus) if config.windows == "contiguous" else corpus
    task = text_task(
        config,
        corpus,
        tuned,
        model,
        laws=lambda params: f"extension: {config.extend}",
        init_split=lambda before: tuned,
        params_from_init=lambda _, params: params,
        evaluate=partial(measure, tuned, corpus),
        frozen=tuned.frozen if tuned.low_rank else None,
        export=partial(export, tuned),
    )
    return task._replace(about=f"{config.method} · {task.about}")


def measure(
    tuned: Tuned, corpus: Corpus, params: Any, *, step: int, mesh: Mesh, console: Console
) -> list[PerplexityResults]:
    """Return the perplexity at every evaluation length of the config."""
    model_params = jax.jit(tuned.model_params)(params, tuned.frozen)
    return evaluate(tuned, corpus, model_params, step=step, mesh=mesh, console=console)


def export(tuned: Tuned, params: Any, console: Console) -> None:
    """Write the model as a folder from Hugging Face, with its extension in config.json, in place of an earlier one.

    A model with an extension that config.json cannot hold is written without it; `load(extend=...)` gives it back.
    """
    model_params = jax.jit(tuned.model_params)(params, tuned.frozen)
    if not is_main_process():
        return
    folder = run_folder(tuned.config)
    place, scratch = folder / MODEL, Path(tempfile.mkdtemp(prefix=f".{MODEL}.", dir=folder))  # no link lies there
    state = nnx.state(tuned.subject.model(model_params))
    try:
        save_extended(tuned.config, state, scratch, console)
        delete_part(place)
        place.mkdir(exist_ok=True)
        for file in sorted(scratch.iterdir()):
            file.replace(place / file.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    console.print(f"wrote the model into {place}")


def save_extended(config: Config, state: nnx.State, folder: Path, console: Console) -> None:
    """Write a model with the extension of its config, or without one that config.json cannot hold, which is said."""
    extend = None if config.extend == "none" else config.extend
    model, source = interop.load(config.model, extend=extend)
    nnx.update(model, state)
    try:
        interop.save(model, folder, source)
    except ValueError as refused:
        if extend is None:
            raise
        model, source = interop.load(config.model)
        nnx.update(model, state)
        interop.save(model, folder, source)
        console.print(
            f"the model is written without its extension, load it with extend={extend!r}: {refused}",
            markup=False,
            soft_wrap=True,
        )


class TunedResults(PerplexityResults):
    """Perplexity of a fine-tuned model at many lengths."""

    kinds = (KIND._replace(subject="Fine-tuned on text"),)


PROGRAM = Program(config=Config, task=make_task, results=TunedResults, docstring=__doc__ or "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
