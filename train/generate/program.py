"""Go on with a text, or answer in a chat, by a model in a Hugging Face folder, a GGUF file or a run.

    python -m train.generate --model=SmolLM2-135M "The three primary colors are"
    python -m train.generate --model=SmolLM2-135M-Instruct "Name three colors." --system="Be brief."
    python -m train.generate --model=model.gguf --prompt_file=book.txt --extend="yarn(factor=4)"
    python -m train.generate --model=model.gguf "Once upon a time" --temperature=0.8 --min_p=0.05 --samples=3
    python -m train.generate --model=runs/rope-shakespeare-0 "To be" --temperature=0.8

    python -m train.generate --model=model.gguf "A story without end:" --window=512 --first=4 --max_tokens=10000

A model with a chat template is asked as a chat, unless --chat=off. The text is written as it is made, and ends at the
model's own ends of text, before a text of `--stop`, or after `--max_tokens`. What was loaded, and how fast it was, goes
to the standard error output.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from rich.console import Console

from pejax._process.devices import visible_devices
from pejax._process.text import printable
from pejax.models import Sampling, stream
from train.devices.kept_programs import keep_programs
from train.engine.heartbeat import working
from train.engine.options import require_rules
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.terminal import user_console
from train.generate.models import Subject, about, model_folder, open_model
from train.generate.options import GenerateOptions, parser
from train.generate.output import lines, pieces, texts
from train.generate.progress import Progress, timed
from train.generate.prompt import ask, read_messages, read_prompt
from train.generate.sampling import sampling_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = parser(__doc__ or "").parse_args(argv)
    options, console = arguments.options, user_console(stderr=True)
    progress = Progress()

    def last_line() -> str:
        print()  # flushed before the line that says it
        return f"{progress}"

    with stop_on_signals(last_line), report_errors(ValueError, TypeError, OSError, ImportError):
        for piece in text(arguments.prompt, options, console, progress):
            sys.stdout.write(printable(piece) if sys.stdout.isatty() else piece)
            sys.stdout.flush()
        console.print(str(progress))
    return 0


def text(prompt: str | None, options: GenerateOptions, console: Console, progress: Progress) -> Iterator[str]:
    """Return the output of the command after a prompt, piece by piece; the progress counts its tokens.

    Raises:
        ValueError: a model that cannot be loaded or is no decoder, a prompt without tokens or as long as the context of
            the model, or an option out of range.
    """
    if options.max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {options.max_tokens}")
    if "" in options.stop:
        raise ValueError(f"stop must hold texts of at least one character, got {options.stop}")
    require_rules(options)
    options = dataclasses.replace(options, model=model_folder(options.model))
    prompt = read_prompt(prompt, options)
    messages = read_messages(prompt, options)
    visible_devices()
    if not_kept := keep_programs(options.programs, cpu=True):
        console.print(not_kept)
    with working(console, "loading"):
        subject = open_model(options)
    model, tokenizer = subject.model, subject.reader
    ids, note = ask(tokenizer, prompt, messages, options)
    if not ids:
        raise ValueError("the prompt must have at least one token, got none")
    sampling, notes = sampling_of(options, model.config.vocab)
    count, steps = _steps(subject, ids, sampling, options)
    console.print(f"{about(subject)} · {len(ids)} tokens of the prompt, at most {count} to follow")
    for line in (*filter(None, [note]), *notes):
        console.print(line)
    steps = timed(steps, progress, console)
    for number, tokens in enumerate(texts(steps, options.samples, tokenizer.eos, progress.count), 1):
        if options.samples > 1:
            yield f"== {number} of {options.samples}\n"
        yield from (lines if options.logprobs else pieces)(tokens, tokenizer, options.stop)


def _steps(subject: Subject, ids: list[int], sampling: Sampling, options: GenerateOptions) -> tuple[int, Iterator[Any]]:
    """Return the largest number of new tokens, and an iterator over the next tokens of all texts."""
    model, eos = subject.model, subject.reader.eos
    renumber = model.stack.encoding.embed is None  # what is added to the input keeps its position
    endless = bool(options.extend) or (renumber and 0 < options.window <= model.config.length - options.first)
    count = options.max_tokens if endless else _room(len(ids), model.config.length, options.max_tokens)
    return count, stream(
        model,
        [ids] * options.samples,
        count,
        sampling=sampling,
        key=jax.random.key(options.seed),
        # One text is read up to its end.
        stop=[end for end in eos if end < model.config.vocab] if options.samples > 1 else None,
        policy=None if options.cache_policy == "auto" else options.cache_policy,
        window=options.window or None,
        first=options.first,
        renumber=renumber,
        return_logprobs=options.logprobs,
    )


def _room(prompt: int, context: int, most: int) -> int:
    """Return how many tokens, and no more than `most`, can follow a prompt in the context of the model."""
    if prompt >= context:
        raise ValueError(f"the prompt must be shorter than the context of the model, {context} tokens, or a window or "
                         f"extend be given, such as 'yarn(factor=4)', got {prompt} tokens")  # fmt: skip
    return min(most, context - prompt)
