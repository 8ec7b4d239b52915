"""Train a language model with any positional encoding, then evaluate it beyond its trained length.

    python -m train.lm --pe=alibi                                 minutes on two cores, embedded Shakespeare
    python -m train.lm --pe="rope(base=500000)" --data=file:notes.txt
    python -m train.evaluate runs/rope-shakespeare-0 --extend=yarn            with context extension
    python -m train.lm --init=runs/rope-shakespeare-0 --extend=pi --length=512 --steps=200       fine-tuning at 512
    python -m train.lm --init=runs/rope-shakespeare-0 --pe=none --steps=300   DroPE: the encoding is dropped
    python -m train.lm --resume --out=runs/rope-shakespeare-0     resumes a stopped run
    python -m train.lm --help                                     every option

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

from pejax._ops.backend import platform
from pejax.models import TransformerConfig
from train.data.text.loading import Corpus, load_text, packed_batches
from train.devices.flops import text_flops
from train.engine import session
from train.engine.progress import TOKENS
from train.engine.task import Program, Task, params_from_init
from train.lm import step
from train.lm.config import Config, TextConfig
from train.lm.evaluate import evaluate, evaluation_regions
from train.lm.model import SUMS, Language
from train.lm.results import PerplexityResults


def make_task(config: Config) -> Task:
    """Read the text and build the model.

    Raises:
        ValueError: the config does not fit the text, the model or the encoding.
    """
    configs = [dataclasses.replace(config, extend=extend).validated() for extend in config.extensions]
    for variant in configs:  # settings are refused before data are read
        require_supported(Language(variant, vocab=256), config.length)
    corpus = load_text(config.data, config.validation, config.windows)
    languages = [Language(variant, corpus.tokenizer.vocab) for variant in configs]
    language = languages[0]
    probe, note = language.prober(corpus) if config.probe_every else (None, "")
    return text_task(
        config,
        corpus,
        language,
        language.decoder,
        laws=language.laws,
        init_split=lambda before: Language(before, corpus.tokenizer.vocab),
        params_from_init=lambda _, params: params_from_init(config, language.shapes, params),
        evaluate=partial(evaluate_all, languages, corpus),
        probe=probe,
        notes=(note,) if note else (),
        probe_every=config.probe_every,
        head_entropies=partial(language.head_entropies, corpus),
    )


def evaluate_all(
    languages: Sequence[Language], corpus: Corpus, params: Any, *, step: int, mesh: Mesh, console: Console
) -> list[PerplexityResults]:
    """Return the perplexity at every evaluation length, with each extension."""
    evaluations = [evaluate(language, corpus, params, step=step, mesh=mesh, console=console) for language in languages]
    return list(itertools.chain(*evaluations))


def text_task(config: TextConfig, corpus: Corpus, language: Any, model: TransformerConfig, **fields: Any) -> Task:
    """Return the task of training a decoder on windows of text.

    Args:
        config: settings of the run.
        corpus: the text.
        language: a `Split` with `loss` and `refusal`.
        model: config of the decoder.
        **fields: the fields of the task that do not follow from these.

    Raises:
        ValueError: the text is too short, or the encoding refuses the trained length.
    """
    evaluation_regions(config, corpus)  # refuse a text that is too short to evaluate on before training
    require_supported(language, config.length)
    stream = sum(map(len, corpus.train))
    epoch = max(1, stream // (config.batch * config.length))
    return Task(
        split=language,
        identity=corpus.identity,
        about=f"length {config.length} · {corpus.identity}, {stream:,} tokens",
        unit=TOKENS,
        sums=SUMS,
        steps=config.steps or epoch,
        restarts=tuple(steps or epoch for steps in config.restarts),
        per_epoch=epoch,
        warmup=config.warmup,
        batches=partial(
            packed_batches,
            corpus,
            config.length,
            config.batch,
            config.seed,
            always_segments=platform() != "gpu",  # a GPU's fastest attention takes none
        ),
        loss=language.loss,
        kv_heads=model.layers[0].attention.kv_heads,
        length=config.length,
        flops=text_flops(model, config.batch, config.length),
        **fields,
    )


def require_supported(language: Any, length: int) -> None:
    """Raise ValueError, with the reason, where the encoding does not support a length."""
    reason = language.refusal(length)
    if reason:
        raise ValueError(reason)


PROGRAM = Program(
    config=Config,
    task=make_task,
    results=PerplexityResults,
    model=step.make_model,
    step=step.abstract_step,
    docstring=__doc__ or "",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
