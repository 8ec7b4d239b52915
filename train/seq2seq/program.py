"""Train an encoder-decoder with any positional encoding, then evaluate it beyond its trained length.

    python -m train.seq2seq --pe=rope --task=reverse --cross=unified          minutes on two cores
    python -m train.seq2seq --pe=t5 --cross=separate --task=copy,sort         a mixture
    python -m train.seq2seq --pe=alibi --decoder_pe=rope --cross=query_only   different encodings
    python -m train.evaluate runs/rope-cross_unified-reverse-0 --extend="yarn(factor=4)"
    python -m train.evaluate --compare runs/*-reverse-0 --to=comparison       a comparison of runs
    python -m train.seq2seq --resume --out=runs/rope-cross_unified-reverse-0   resumes a stopped run
    python -m train.seq2seq --help                                            every option

The run folder then has config.json, environment.json, metrics.jsonl, tensorboard/, checkpoints/, results.json and
results.png.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from jax.sharding import Mesh
from rich.console import Console

from train.devices.flops import text_pair_flops
from train.devices.memory import FLOAT, host_memory, require_room
from train.engine import session
from train.engine.progress import TOKENS
from train.engine.task import Program, Task, params_from_init
from train.seq2seq import step
from train.seq2seq.config import Config
from train.seq2seq.model import SUMS, Answerer, evaluate
from train.seq2seq.results import ExactMatchResults
from train.seq2seq.tasks import train_batches


def make_task(config: Config) -> Task:
    """Make the model for the tasks.

    Raises:
        ValueError: the config does not fit the tasks, the model or the encodings.
    """
    longest = max(config.lengths)
    require_room(FLOAT * longest * config.width, host_memory(), f"eval_lengths: an example of {longest:,} tokens")
    answerers = [Answerer(dataclasses.replace(config, extend=extend)) for extend in config.extensions]
    answerer = answerers[0]
    refused = answerer.refusal(config.length)
    if refused:
        raise ValueError(refused)
    return Task(
        split=answerer,
        identity=config.data,
        about=f"cross {config.cross} · {config.data}, up to {config.length} tokens",
        unit=TOKENS,
        sums=SUMS,
        steps=config.steps,
        restarts=config.restarts,
        per_epoch=config.steps,
        warmup=config.warmup,
        batches=partial(train_batches, config.tasks, config.length, config.batch, config.seed),
        loss=answerer.loss,
        kv_heads=config.kv_heads or config.heads,
        length=config.length + 1,
        laws=answerer.laws,
        init_split=Answerer,
        params_from_init=lambda _, params: params_from_init(config, answerer.shapes, params),
        evaluate=partial(evaluate_all, answerers),
        flops=text_pair_flops(answerer.network, config.batch, config.length + 1, config.length + 1),
        head_entropies=answerer.head_entropies,
    )


def evaluate_all(
    answerers: Sequence[Answerer], params: Any, *, step: int, mesh: Mesh, console: Console
) -> list[ExactMatchResults]:
    """Return the exact answers at every evaluation length, with each extension."""
    evaluations = [evaluate(answerer, params, step=step, mesh=mesh, console=console) for answerer in answerers]
    return list(itertools.chain(*evaluations))


PROGRAM = Program(
    config=Config,
    task=make_task,
    results=ExactMatchResults,
    model=step.make_model,
    step=step.abstract_step,
    docstring=__doc__ or "",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
