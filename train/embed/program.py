"""Write the vectors of the lines of a file, by an embedding model in a folder of sentence-transformers.

    python -m train.embed --model=all-MiniLM-L6-v2 --texts=lines.txt --out=vectors.npy
    python -m train.embed --model=e5-base-v2 --texts=questions.txt --out=questions.npy --prompt_text="query: "
    python -m train.embed --model=Qwen3-Embedding-0.6B --texts=questions.txt --out=q.npy --prompt=query
    python -m train.embed --model=modernbert-embed --texts=books.txt --out=books.npy \
        --extend="yarn(factor=2)" --max_length=16384

All visible devices share the texts of a batch; texts of similar lengths are read together, the longest first. The rows
of the file are in the order of the lines. Beside it, `OUT.json` says what they were made of. Stopped, the same command
goes on where it was, from the folder `OUT.partial`.
"""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from pejax import interop
from train.devices.mesh import make_mesh
from train.embed.options import EmbedOptions, read_options
from train.embed.partial import Partial, is_finished
from train.engine.heartbeat import working
from train.engine.progress import Evaluating
from train.engine.stopping import report_errors, run_in_thread, stop_on_signals
from train.engine.terminal import user_console

KEPT_EVERY = 2.0
"""Seconds between two writes of what is finished to the disk."""

OVERHEAD = 16
"""Work of a text besides its characters, in characters, for the time left."""

FILES = ("*.json", "*.safetensors")
"""Patterns of the files, at any depth of a folder, that its vectors depend on."""

OWN_PROMPT = "of --prompt_text"
"""Name of the prompt that `--prompt_text` gives."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    console = user_console()
    with report_errors(ValueError, TypeError, OSError, ImportError):
        options = read_options(argv, __doc__ or "")
        with stop_on_signals(lambda: "what is finished is kept: run the same command again"):
            run_in_thread(lambda: run(options, console))
    return 0


def run(options: EmbedOptions, console: Console) -> None:
    """Write the vectors, unless they are there.

    Raises:
        ValueError: no model, no texts, or a file that is there with other vectors.
    """
    out = Path(options.out)
    with working(console, "loading"):
        texts, digest = read_lines(Path(options.texts))
        embedder = open_embedder(options)
        settings = {
            "model": folder_digest(Path(options.model)), "texts": digest,
            "prompt": embedder.prompt_text(prompt_name(options)),
            "max_length": embedder.max_length, "width": embedder.truncate_dim or embedder.width,
            "extend": options.extend, "batch": options.batch, "dtype": options.dtype, "params": options.params,
        }  # fmt: skip
        if is_finished(out, settings):
            console.print(f"{out} is there already, made of the same texts by the same model")
            return
        partial = Partial(out, settings, (len(texts), settings["width"]), -(-len(texts) // options.batch))
    embed(embedder, texts, partial, options, console)
    console.print(f"wrote {out}: {len(texts):,} vectors of {settings['width']} channels")


def embed(
    embedder: interop.Embedder, texts: Sequence[str], partial: Partial, options: EmbedOptions, console: Console
) -> None:
    """Compute the vectors that are missing, and finish the file."""
    work = lambda numbers: sum(len(texts[number]) + OVERHEAD for number in numbers)
    done, missing = partial.done, max(0, len(texts) - partial.done * options.batch)
    begun = f" · {len(texts) - missing:,} of them are done" if done else ""
    console.print(f"{len(texts):,} texts · at most {embedder.max_length:,} tokens each{begun}")
    lengths = sorted((len(text) + OVERHEAD for text in texts), reverse=True)
    kept = time.monotonic()
    with Evaluating(console, sum(lengths[done * options.batch :]) or 1) as progress:
        inputs = {"prompt": prompt_name(options), "batch": options.batch, "skip": done}
        for numbers, vectors in embedder.encode_batches(texts, **inputs):
            partial.vectors[numbers] = vectors
            done += 1
            if time.monotonic() - kept > KEPT_EVERY:
                partial.keep(done)
                kept = time.monotonic()
            progress(work(numbers), f"{min(done * options.batch, len(texts)):,} texts")
    partial.finish()


def open_embedder(options: EmbedOptions) -> interop.Embedder:
    """Load the model on the devices, with the settings of the command.

    Raises:
        ValueError: as `interop.load_embedder`.
    """
    mesh = make_mesh(options.devices, options.mesh, options.batch)
    embedder = interop.load_embedder(
        options.model, extend=options.extend or None, dtype=options.dtype, params=options.params,
        mesh=mesh if mesh.size > 1 else None,
    )  # fmt: skip
    if options.max_length:
        embedder.max_length = options.max_length
    if options.truncate_dim:
        embedder.truncate_dim = options.truncate_dim
    if options.prompt_text:
        embedder.prompts[OWN_PROMPT] = options.prompt_text
    return embedder


def prompt_name(options: EmbedOptions) -> str | None:
    """Return the name of the prompt. None = the default of the folder."""
    return OWN_PROMPT if options.prompt_text else options.prompt or None


def read_lines(path: Path) -> tuple[list[str], str]:
    """Return the lines of a file and its digest; only a line feed ends a line, a carriage return before it is dropped.

    Raises:
        ValueError: no file that can be read, none of UTF-8, or an empty one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"texts must be a file that can be read, got {path}: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = content[: wrong.start].count(b"\n") + 1
        raise ValueError(f"texts must be UTF-8, got another byte in line {line} of {path}") from None
    if not text:
        raise ValueError(f"texts must have at least one line, got none in {path}")
    lines = text.removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines], hashlib.sha256(content).hexdigest()[:16]


def folder_digest(folder: Path) -> str:
    """Return a digest of the files of a model that its vectors depend on."""
    digest = hashlib.sha256()
    paths = {path for pattern in FILES for path in folder.rglob(pattern) if path.is_file()}
    for path in sorted(path for path in paths if ".npy." not in f"{path.relative_to(folder)}"):  # results in the folder
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(folder)}".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
