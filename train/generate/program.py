"""Go on with a text, by a language model in a Hugging Face folder, a GGUF file or a run of train.lm or train.tune.

    python -m train.generate --model=SmolLM2-135M "The three primary colors are"
    python -m train.generate --model=model.gguf "Once upon a time" --temperature=0.8 --top_p=0.95 --seed=3
    python -m train.generate --model=model.gguf "$(cat book.txt) In short," --extend="yarn(factor=4)"
    python -m train.generate --model=runs/rope-shakespeare-0 "To be" --temperature=0.8

    python -m train.generate --model=model.gguf "A story without end:" --window=512 --first=4 --max_tokens=10000

The text is written as it is made, and ends at the model's own ends of text, before a text of `--stop`, or after
`--max_tokens`. What was loaded, and how fast it was, goes to the standard error output.
"""

import dataclasses
import itertools
import statistics
import sys
import time
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
from train.generate.models import about, open_model
from train.generate.options import GenerateOptions, parser


@dataclasses.dataclass
class Progress:
    """The times of the tokens made so far.

    Attributes:
        asked: when the first of them was asked for.
        times: when each of them was there, the one that ends the text included.
        compiled: seconds of compilation before the first of them.
    """

    asked: float = 0.0
    times: list[float] = dataclasses.field(default_factory=list)
    compiled: float = 0.0

    def count(self) -> None:
        """Count a token."""
        self.times.append(time.perf_counter())

    def note(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Count the seconds of a compilation, as `jax.monitoring` tells them."""
        del kwargs
        if self.asked and not self.times and event.endswith("backend_compile_duration"):
            self.compiled += duration_secs

    def __str__(self) -> str:
        count = len(self.times)
        words = [f"{count} token{'s' * (count != 1)}"]
        if count:
            words.append(
                f"the first after {self.times[0] - self.asked:.2f} s, {self.compiled:.2f} s of them to compile"
            )
        if count > 2:  # the second one waits for a program, too: the median leaves such steps out
            step = statistics.median(after - before for before, after in itertools.pairwise(self.times))
            words.append(f"then {1 / step:.1f} tokens per second")
        return " · ".join(words)


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
        sys.stdout.write("\n")
        console.print(str(progress))
    return 0


def text(prompt: str, options: GenerateOptions, console: Console, progress: Progress) -> Iterator[str]:
    """Return the text that follows a prompt, piece by piece; the progress counts its tokens.

    Raises:
        ValueError: a model that cannot be loaded or is no decoder, a prompt without tokens or as long as the context of
            the model, or an option out of range.
    """
    require_rules(options)
    if options.max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {options.max_tokens}")
    if "" in options.stop:
        raise ValueError(f"stop must hold texts of at least one character, got {options.stop}")
    if any("\ud800" <= letter <= "\udfff" for letter in prompt):
        encoding = sys.getfilesystemencoding()
        raise ValueError(f"the prompt must be text in this locale's encoding, {encoding}, got {prompt!r}")
    visible_devices()
    if not_kept := keep_programs(options.programs, cpu=True):
        console.print(not_kept)
    with working(console, "loading"):
        subject = open_model(options)
    model, tokenizer = subject.model, subject.reader
    ids = tokenizer.encode(prompt)
    if not ids:
        raise ValueError("the prompt must have at least one token, got none")
    renumber = model.stack.encoding.embed is None  # what is added to the input keeps its position
    endless = bool(options.extend) or (renumber and 0 < options.window <= model.config.length - options.first)
    count = options.max_tokens if endless else _room(len(ids), model.config.length, options.max_tokens)
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    tokens = stream(
        model,
        [ids],
        count,
        sampling=sampling,
        key=jax.random.key(options.seed),
        policy=None if options.cache_policy == "auto" else options.cache_policy,
        window=options.window or None,
        first=options.first,
        renumber=renumber,
    )
    console.print(f"{about(subject)} · {len(ids)} tokens of the prompt, at most {count} to follow")

    def token_ids() -> Iterator[int]:
        progress.asked = time.perf_counter()
        with working(console, "reading the prompt"):
            first = int(next(tokens)[0])
        for token in itertools.chain([first], (int(token[0]) for token in tokens)):
            progress.count()
            yield token

    jax.monitoring.register_event_duration_secs_listener(progress.note)
    yield from tokenizer.stream(token_ids(), stop=(*tokenizer.eos, *options.stop))


def _room(prompt: int, context: int, most: int) -> int:
    """Return how many tokens, and no more than `most`, can follow a prompt in the context of the model."""
    if prompt >= context:
        raise ValueError(f"the prompt must be shorter than the context of the model, {context} tokens, or a window or "
                         f"extend be given, such as 'yarn(factor=4)', got {prompt} tokens")  # fmt: skip
    return min(most, context - prompt)
