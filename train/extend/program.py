"""Measure a trained language model beyond its trained length, with extensions of its positions.

    python -m train.extend --model=DIR_OR_GGUF                                     perplexity by length, and pass keys
    python -m train.extend --model=DIR_OR_GGUF --extend="none,yarn(factor=4)" --lengths 8192 16384
    python -m train.extend --model=DIR_OR_GGUF --data=file:book.txt                on any text
    python -m train.extend --model=DIR_OR_GGUF --finetune=pi                       after fine-tuning with pi (LoRA)

Attention is computed in tiles and logits in chunks, so memory grows with the length and not with its square. The folder
of the results then has lines.jsonl, one line per extension and length, results.md and results.png, and a run of
`train.tune` for each extension that was fine-tuned with. Stopped, the same command goes on where it was.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from pejax import interop
from train.data.text.loading import evaluation_windows, load_text
from train.devices.mesh import make_mesh
from train.engine import session
from train.engine.files import lock_folder, write_atomic
from train.engine.heartbeat import working
from train.engine.parser import parse
from train.engine.progress import Evaluating
from train.engine.results import results_stem
from train.engine.run_files import MODEL
from train.engine.stopping import report_errors, run_in_thread, stop_on_signals
from train.engine.stored_config import is_run, load_config, require_same
from train.engine.terminal import user_console
from train.extend.options import ExtendOptions, read_options
from train.extend.passkey import Question, questions
from train.extend.results import (
    DIFFERENCES,
    WEIGHTS,
    Measured,
    add,
    differences,
    draw,
    markdown,
    open_folder,
    rows_by_name,
    summarize,
    table,
)
from train.lm.evaluate import Reader
from train.tune.program import PROGRAM as TUNE
from train.tune.subject import Loaded, decoder_source, model_digest, retokenized_corpus

SUFFIX = ", fine-tuned"


class Plan(NamedTuple):
    """Everything that is measured.

    Attributes:
        options: options of the command.
        folder: folder of the results.
        trained: trained length of the model, tokens.
        lengths: ascending, tokens.
        windows: token ids, `(windows, longest + 1)`.
        questions: questions of the passkey test, by length.
        note: about the text.
        settings: what the measurements of the model without fine-tuning are made by.
    """

    options: ExtendOptions
    folder: Path
    trained: int
    lengths: tuple[int, ...]
    windows: np.ndarray
    questions: dict[int, list[Question]]
    note: str
    settings: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows of the table."""
        return (*self.options.extensions, *(name + SUFFIX for name in self.options.finetuned))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    console = user_console()
    with report_errors(ValueError, TypeError, OSError):
        options = read_options(argv, __doc__ or "")
        with stop_on_signals(lambda: "what was measured is saved: run the same command again"):
            with working(console, "preparing"):
                plan, lines = prepare(options, console)
            for extend in options.finetuned:
                tune(plan, extend)
            lines = run_in_thread(lambda: measure_all(plan, lines, console))
            with working(console, "writing the results"):
                publish(plan, lines, console)
    return 0


def prepare(options: ExtendOptions, console: Console) -> tuple[Plan, list[Measured]]:
    """Read the text and the config of the model; return the plan and the measurements of earlier runs.

    Raises:
        ValueError: the model, the text or the folder does not fit.
    """
    path = Path(options.model)
    decoder, _ = decoder_source(options.model)
    trained = decoder.length
    lengths = tuple(sorted(set(options.lengths or (trained // 2, trained, 2 * trained))))
    corpus = retokenized_corpus(load_text(options.data), options.model, decoder.vocab)
    try:
        windows, _ = evaluation_windows(corpus, lengths[-1], options.windows)
    except ValueError as refused:
        raise ValueError(f"lengths: {refused}") from None
    tokenizer = interop.load_tokenizer(path)
    encode = partial(tokenizer.encode, special=False)
    asked = {length: questions(encode, length, options.passkey) for length in lengths if options.passkey}
    name = re.sub(r"[^\w.=,-]+", "_", path.resolve().stem)
    folder = Path(options.out or Path("runs") / f"extend-{name}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, got the file {folder}")
    lock_folder(folder)
    settings = {
        WEIGHTS: model_digest(options.model), "data": corpus.identity, "windows": len(windows), "longest": lengths[-1],
        "passkey": options.passkey, "dtype": options.dtype,
    }  # fmt: skip
    lines = open_folder(folder, settings, lambda text: console.print(text, markup=False, soft_wrap=True))
    plan = Plan(options, folder, trained, lengths, windows, asked, corpus.note, settings)
    console.print(
        f"{path.name}: trained length {trained:,} · {len(windows)} windows of up to {lengths[-1]:,} tokens of "
        f"{options.data} · measured already: {len(lines)}"
    )
    return plan, lines


def tune(plan: Plan, extend: str) -> None:
    """Fine-tune with an extension, or go on with a run that was stopped, unless its model is there.

    Raises:
        ValueError: the model there was fine-tuned with other settings.
        SystemExit: fine-tuning was refused, or stopped.
    """
    options, folder = plan.options, tuned_folder(plan, extend)
    arguments = [
        f"--model={options.model}", f"--extend={extend}", f"--method={options.method}", f"--steps={options.steps}",
        f"--length={options.length or plan.lengths[-1]}", f"--lr={options.lr}", f"--data={options.data}",
        f"--dtype={options.dtype}", f"--out={folder}", "--eval_limit=1", "--eval_lengths", str(plan.lengths[0]),
    ]  # fmt: skip
    if (folder / f"{results_stem(extend)}.json").is_file() and (folder / MODEL).is_dir():
        try:
            require_same(load_config(TUNE.config, folder), parse(TUNE.config, arguments))
        except ValueError as differs:
            raise ValueError(f"{folder} must hold a run of this command: {differs}; give another --out") from None
        return
    status = session.main(TUNE, [*arguments, *(["--resume"] if is_run(folder) else [])])
    if status or not (folder / MODEL).is_dir():
        raise SystemExit(status)


def tuned_folder(plan: Plan, extend: str) -> Path:
    """Return the run folder of fine-tuning with an extension."""
    return plan.folder / f"tuned-{re.sub(r'[^A-Za-z0-9_.=-]+', '_', extend).strip('_')}"


def measured_model(plan: Plan, name: str) -> tuple[str, str]:
    """Return the path of the model in a row of the table, and the extension that it is loaded with.

    The folder of a fine-tuned model has its extension already, where config.json can hold it.
    """
    extend, model = name.removesuffix(SUFFIX), plan.options.model
    if extend == name:
        return model, extend
    tuned = str(tuned_folder(plan, extend) / MODEL)
    layers = lambda path: decoder_source(path)[0].layers
    return tuned, extend if layers(tuned) == layers(model) else "none"


def measure_all(plan: Plan, lines: list[Measured], console: Console) -> list[Measured]:
    """Measure missing lines one by one, and return all lines that the models of this command have made."""
    models = {name: measured_model(plan, name) for name in plan.names}
    made_by = {name: {**plan.settings, WEIGHTS: model_digest(path)} for name, (path, _) in models.items()}
    lines = [line for line in lines if line.made_by == made_by.get(line.name)]
    rows = rows_by_name(lines, plan.names, plan.lengths)
    gaps = {
        name: [length for length, line in zip(plan.lengths, row, strict=True) if line is None]
        for name, row in zip(plan.names, rows, strict=True)
    }
    work = lambda length: len(plan.windows) * length + len(plan.questions.get(length, ())) * length
    total = sum(work(length) for lengths in gaps.values() for length in lengths)
    mesh = make_mesh(0, "", len(plan.windows))
    with Evaluating(console, max(1, total)) as progress:
        for name, lengths in gaps.items():
            if not lengths:
                continue
            try:
                subject = Loaded(*models[name], plan.options.dtype, mesh)
            except ValueError as refused:
                why = " ".join(str(refused).split())
                measurements = [Measured(name, length, refused=why) for length in lengths]
            else:
                measurements = measure(subject, plan, name, lengths, mesh, progress)
            for measurement in measurements:
                measurement = dataclasses.replace(measurement, made_by=made_by[name])
                add(plan.folder, measurement)
                lines.append(measurement)
                if not console.is_terminal and not measurement.refused:
                    at = f"{measurement.length:,} tokens · perplexity {measurement.perplexity:.2f}"
                    console.print(f"{name} · {at} · {measurement.seconds} s")
    return lines


def measure(
    subject: Loaded, plan: Plan, name: str, lengths: Sequence[int], mesh: Mesh,
    progress: Callable[[float, str], None],
) -> Iterator[Measured]:  # fmt: skip
    """Yield the measurements of one extension at these lengths, one by one."""
    params = subject.loaded
    read = jax.jit(subject.ends, static_argnames="count")
    reader = Reader(subject.losses, params, mesh, lambda work, what: progress(work, f"{name} · {what}"))
    for length in lengths:
        refused = subject.refusal(length)
        if refused:
            yield Measured(name, length, refused=refused)
            continue
        begun = time.perf_counter()
        losses = reader.all(plan.windows[:, -length - 1 :])
        seconds = time.perf_counter() - begun
        hits = []
        for question in plan.questions.get(length, ()):
            said = np.asarray(read(params, question.ids[None], count=question.answer))[0]
            hits.append(bool((said == question.ids[-question.answer :]).all()))
            progress(length, f"{name} · pass keys in {length:,} tokens")
        yield summarize(name, length, losses, hits, seconds)


def publish(plan: Plan, lines: list[Measured], console: Console) -> None:
    """Print the table, and write it and the figure."""
    rows = rows_by_name(lines, plan.names, plan.lengths)
    title = f"{Path(plan.options.model).name}, trained at {plan.trained:,} tokens, on {plan.options.data}"
    console.print(table(rows, plan.names, plan.lengths, title, plan.options.passkey))
    comparisons = differences(rows, plan.names)
    if comparisons:
        console.print(f"{DIFFERENCES}:", *comparisons, sep="\n", markup=False)
    write_atomic(plan.folder / "results.md", markdown(rows, plan.names, plan.lengths, title, plan.options.passkey))
    draw(rows, plan.trained, plan.folder / "results.png", title, plan.note)
    console.print(f"wrote {plan.folder}/results.md and .png")
