"""A program for a child process: a tokenizer of the package tokenizers encodes texts and decodes token ids.

The content is a tokenizer as JSON, and the answer is empty. `pejax.interop.child` runs it, for
`pejax.interop.tokenizer_trial`.
"""

import contextlib
import itertools
import sys

TEXTS = (
    "", " ", "\n", "a", "\u200d",
    " The 2nd \"naïve\" café,\tcosts ``12,345.67'' <b>…\r\n\n 漢字 हिन्दी 🤗\u200d\x00  x",
    "a" * 40 + "! b" + "a" * 5000,
)  # fmt: skip
"""Letters of every kind, none, and long words, on which a bad pattern never ends."""


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


def answer(content: str) -> str:
    """Try a tokenizer; end the process with a line for a panic."""
    try:
        attempt(content)
    except BaseException as panic:
        sys.exit(f"a panic of the library: {' '.join(str(panic).split())}")
    return ""
