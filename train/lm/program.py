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

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from train.data.text.loading import load_text, packed_batches
from train.devices.flops import text_flops
from train.engine import session
from train.engine.progress import TOKENS
from train.engine.task import Program, Task, fitted
from train.lm.config import Config
from train.lm.curves import draw_training
from train.lm.evaluate import evaluate, evaluation_regions
from train.lm.model import SUMS, Language
from train.lm.results import draw, load_results, markdown, scores


def make_task(config: Config) -> Task:
    """Read the text and build the model.

    Raises:
        ValueError: the config does not fit the text, the model or the encoding.
    """
    corpus = load_text(config.data, config.validation)
    evaluation_regions(config, corpus)  # refuse a text that is too short to evaluate on before training
    language = Language(config, corpus.tokenizer.vocab)
    refused = language.refusal(config.length)
    if refused:
        raise ValueError(refused)
    stream = sum(map(len, corpus.train))
    epoch = max(1, stream // (config.batch * config.length))
    return Task(
        split=language,
        identity=corpus.identity,
        about=f"length {config.length} · {corpus.identity}, {stream:,} tokens",
        unit=TOKENS,
        sums=SUMS,
        steps=config.steps or epoch,
        per_epoch=epoch,
        warmup=config.warmup,
        batches=partial(packed_batches, corpus, config.length, config.batch, config.seed),
        loss=language.loss,
        kv_heads=config.kv_heads or config.heads,
        length=config.length,
        laws=language.laws,
        before=lambda before: Language(before, corpus.tokenizer.vocab),
        fitted=lambda _, params: fitted(config, language.shapes, params),
        evaluate=partial(evaluate, language, corpus),
        probe=language.prober(corpus) if config.probe_every else None,
        probe_every=config.probe_every,
        flops=text_flops(language.decoder, config.batch, config.length),
        head_entropies=partial(language.head_entropies, corpus),
    )


def compare(files: Sequence[Path], to: Path) -> None:
    """Write the tables of many runs, and figures of perplexity against length and of the loss during training."""
    runs = [load_results(path) for path in files]
    Path(f"{to}.md").write_text(markdown(runs), encoding="utf-8")
    draw(runs, Path(f"{to}.png"))
    draw_training(runs, [path.parent for path in files], Path(f"{to}-training.png"))


PROGRAM = Program(config=Config, task=make_task, compare=compare, load=load_results, scores=scores, higher=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return session.main(PROGRAM, argv)
