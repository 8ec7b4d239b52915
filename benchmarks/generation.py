"""Text generation on one core of a CPU, by pejax and by transformers: CPU seconds of the first token, and the rate.

    python -m benchmarks.generation                    a Llama of 25M parameters, 4 rounds
    python -m benchmarks.generation --size=135M --rounds=2 --prompt=512

transformers makes a model of random numbers and saves it; both load that folder in float32, and take the most probable
token each time. Each measurement is a process of its own on one core, with one thread; the sides alternate, A B B A.
CPU seconds count, not those of a clock, because other programs may run beside it. Prints a table of medians, and
whether all processes made the same tokens.
"""

import argparse
import importlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIZES: dict[str, dict[str, int]] = {
    "25M": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6,
            "num_key_value_heads": 2, "vocab_size": 32000},
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "vocab_size": 49152},
}  # fmt: skip
"""Sizes of a Llama with a tied head: a small one, and that of SmolLM2-135M."""

SIDES = ("pejax", "pejax, programs kept", "transformers")
WORDS = {
    "import_s": "import, CPU s",
    "load_s": "loading, CPU s",
    "first_s": "first token of the process, CPU s",
    "later_first_s": "first token of a later text, CPU s",
    "rate": "tokens per CPU second after the first",
    "whole_s": "the process to its last token of the first text, CPU s",
    "peak_mib": "peak memory, MiB",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all sides in turn, or one in this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="25M", help="parameters of the model")
    parser.add_argument("--rounds", type=int, default=4, help="processes of each side")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to make")
    parser.add_argument("--side", choices=SIDES, help="measure this one alone, in this process")
    parser.add_argument("--model", help="folder of the model, with --side")
    options = parser.parse_args(argv)
    if options.side:
        measure = by_transformers if options.side == "transformers" else by_pejax
        print(json.dumps(measure(options.model, options.prompt, options.tokens)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "model", options.size)
        measurements: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        child(SIDES[1], folder, options)  # fills the folder of programs
        for number in range(options.rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                measurements[side].append(child(side, folder, options))
    print(table(measurements))


def make(folder: Path, size: str) -> None:
    """Save a random model of transformers."""
    torch, transformers = peers()
    torch.manual_seed(0)
    sizes = {**SIZES[size], "tie_word_embeddings": True, "max_position_embeddings": 8192, "eos_token_id": None}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(folder)


def peers() -> tuple[Any, Any]:
    """Return torch and transformers, which may be missing."""
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))
    return torch, transformers


def child(side: str, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of a process of its own."""
    cache = {"JAX_COMPILATION_CACHE_DIR": f"{folder}/programs", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "OMP_NUM_THREADS": "1"}
    environment |= cache if side == SIDES[1] else {}
    command = [sys.executable, "-m", "benchmarks.generation", f"--side={side}", f"--model={folder}/model",
               f"--prompt={options.prompt}", f"--tokens={options.tokens}"]  # fmt: skip
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    if process.returncode:
        raise SystemExit(f"error: {side} ended with status {process.returncode}: {process.stderr.splitlines()[-1:]}")
    return json.loads(process.stdout.splitlines()[-1])


def table(measurements: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians of all sides as a table in Markdown, and whether they made the same tokens."""
    lines = ["| | " + " | ".join(measurements) + " |", "|---|" + "---:|" * len(measurements)]
    for name, words in WORDS.items():
        medians = (statistics.median(row[name] for row in rows) for rows in measurements.values())
        lines.append(f"| {words} | " + " | ".join(f"{median:,.2f}" for median in medians) + " |")
    texts = {tuple(row["tokens"]) for rows in measurements.values() for row in rows}
    return "\n".join([*lines, "", f"The same tokens: {'yes' if len(texts) == 1 else 'no'}."])


def measured(load: Callable[[], Callable[[int], list[int]]], began: float, tokens: int) -> dict[str, Any]:
    """Return the CPU seconds of a side.

    Args:
        load: loads the model, and returns how to make a number of tokens.
        began: CPU seconds of the process when its imports began.
        tokens: tokens to make.
    """
    imported = time.process_time()
    make_tokens = load()
    loaded = time.process_time()
    first = seconds(make_tokens, 1)
    ids, total = make_tokens(tokens), time.process_time() - began
    later_first = statistics.median(seconds(make_tokens, 1) for _ in range(3))
    later = statistics.median(seconds(make_tokens, tokens) for _ in range(3))
    start = {"import_s": imported - began, "load_s": loaded - imported, "first_s": first, "whole_s": total}
    rate = (tokens - 1) / (later - later_first)
    return {**start, "later_first_s": later_first, "rate": rate, "peak_mib": peak(), "tokens": ids}


def peak() -> float:
    """Return the MiB of this program at its peak; where Linux does not tell, those of the one that started it count."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return (kilobytes or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])[0] / 1024


def seconds(make_tokens: Callable[[int], list[int]], count: int) -> float:
    """Return the CPU seconds that some tokens take."""
    began = time.process_time()
    make_tokens(count)
    return time.process_time() - began


def prompt_ids(length: int) -> list[list[int]]:
    """Return a prompt of arbitrary ids."""
    return [[(7919 * n + 13) % 30011 for n in range(length)]]


def by_pejax(folder: str, prompt: int, tokens: int) -> dict[str, Any]:
    """Measure pejax; a text of fewer tokens is the beginning of that of all, as a stream makes it."""
    began = one_core()
    from pejax import interop
    from pejax.models import stream

    def load() -> Callable[[int], list[int]]:
        model = interop.load(folder)[0]
        texts = lambda: stream(model, prompt_ids(prompt), tokens)  # pyright: ignore[reportArgumentType]
        return lambda count: [int(token[0]) for token in itertools.islice(texts(), count)]

    return measured(load, began, tokens)


def by_transformers(folder: str, prompt: int, tokens: int) -> dict[str, Any]:
    """Measure transformers."""
    began = one_core()
    torch, transformers = peers()
    torch.set_num_threads(1)

    def load() -> Callable[[int], list[int]]:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = torch.tensor(prompt_ids(prompt))

        def make_tokens(count: int) -> list[int]:
            limits = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None}
            with torch.no_grad():
                return model.generate(ids, **limits)[0, prompt:].tolist()

        return make_tokens

    return measured(load, began, tokens)


def one_core() -> float:
    """Keep this process on one core, where the system lets it; return its CPU seconds so far."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return time.process_time()


if __name__ == "__main__":
    main()
