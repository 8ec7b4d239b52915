"""A program for a child process: a tokenizer of the package tokenizers encodes texts and decodes token ids.

The parent is `pejax.interop.tokenizer_trial`; the tokenizer comes as JSON by the standard input. This file imports
nothing of pejax, so that the child starts in a few hundredths of a second.
"""

import contextlib
import itertools
import os
import sys

SECONDS, BYTES = 10, 2**30
"""The most computing time and memory that the child may take."""

TEXTS = (
    "", " ", "\n", "a", "\u200d",
    " The 2nd \"naïve\" café,\tcosts ``12,345.67'' <b>…\r\n\n 漢字 हिन्दी 🤗\u200d\x00  x",
    "a" * 40 + "! b" + "a" * 5000,
)  # fmt: skip
"""Letters of every kind, none, and long words, on which a bad pattern never ends."""


def limit() -> None:
    """Take the limits, as far as the system has them: Windows has neither, macOS none of memory."""
    try:
        import resource
    except ImportError:
        return
    cpu = (SECONDS, SECONDS + 1)  # SIGXCPU at the first says why, SIGKILL at the second would not
    limits = {resource.RLIMIT_CPU: cpu, resource.RLIMIT_AS: (BYTES, BYTES), resource.RLIMIT_CORE: (0, 0)}
    for kind, amounts in limits.items():
        with contextlib.suppress(ValueError, OSError):  # the process has a lower one already
            resource.setrlimit(kind, amounts)


def attempt(content: str) -> None:
    """Load a tokenizer, encode the texts, and decode ids.

    Errors that the library raises are passed over, since the parent meets them as well; a panic is none of them.
    """
    skip_errors = contextlib.suppress(Exception)
    with skip_errors:
        from tokenizers import Tokenizer
        from tokenizers.decoders import DecodeStream

        tokenizer = Tokenizer.from_str(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for text, special in itertools.product(TEXTS, (False, True)):
            with skip_errors:
                tokenizer.encode(text, add_special_tokens=special)
        every_id = sorted(tokenizer.get_vocab().values())[:100]
        for ids in (every_id, [], *([token] for token in every_id)):
            with skip_errors:
                tokenizer.decode(ids, skip_special_tokens=False)
        stream = DecodeStream(skip_special_tokens=False)
        for token in every_id:
            with skip_errors:
                stream.step(tokenizer, token)


if __name__ == "__main__":
    os.environ.update(TOKENIZERS_PARALLELISM="false", RUST_BACKTRACE="0")  # threads would reserve memory
    limit()
    try:
        attempt(sys.stdin.buffer.read().decode())
    except BaseException as panic:
        sys.exit(f"a panic of the library: {' '.join(str(panic).split())}")
