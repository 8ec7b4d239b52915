"""A language model of a file in pejax and in transformers: seconds to load, memory, tokens per second, the same tokens.

    python -m benchmarks.interop SmolLM2-135M-Instruct.Q4_1.gguf
    python -m benchmarks.interop SmolLM2-135M --tokens=128 --params=bfloat16

Prints JSON lines. Memory is the peak of this process up to the end of loading, which is to be at most the parameters,
the largest of them and half a GiB. transformers, where it is installed, reads the folder that `pejax.interop.save`
writes, and both take the most probable token each time. Speeds are the best of three texts after a first one, which
compiles.
"""

import os

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")  # one text at a time: all cores share each operation
    prepare_cpu()

import argparse
import importlib.util
import json
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from pejax import interop
from pejax.models import Decoder, stream

PROMPT = "The three primary colours are"
GIB = 2**30
REPEATS = 3


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interop", description="A model here and in transformers."
    )
    parser.add_argument("model", help="a folder with a tokenizer.json, or a GGUF file")
    parser.add_argument("--tokens", type=int, default=64, help="to make after the prompt")
    parser.add_argument("--params", default="float32", help="type that parameters are kept in")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    model, source = interop.load(options.model, params=options.params)
    if not isinstance(model, Decoder):
        raise SystemExit(f"error: model must be a decoder, got {options.model} with a {type(model).__name__}")
    jax.block_until_ready(nnx.state(model))
    found: dict[str, Any] = {"package": "pejax", "load_s": round(time.perf_counter() - began, 2), **memory(model)}
    ids = interop.load_tokenizer(options.model).encode(PROMPT)
    made = lambda: [int(token[0]) for token in stream(model, jnp.asarray([ids]), options.tokens)]
    ours, found["tokens_per_s"] = timed(made, options.tokens)
    print(json.dumps(found), flush=True)
    if importlib.util.find_spec("transformers") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        interop.save(model, Path(folder) / "model", source)
        theirs, compared = by_transformers(Path(folder) / "model", ids, options.tokens)
    print(json.dumps({**compared, "same_tokens": theirs == ours}), flush=True)


def memory(model: Any) -> dict[str, float]:
    """Return the GiB of the parameters, of the largest of them, and of the process at its peak."""
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    named = {"params_gib": sum(sizes), "largest_gib": max(sizes), "peak_gib": peak}
    return {name: round(size / GIB, 3) for name, size in named.items()}


def timed(made: Callable[[], list[int]], count: int) -> tuple[list[int], float]:
    """Return the tokens of a text, and how many are made per second."""
    ids, best = made(), float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        made()
        best = min(best, time.perf_counter() - began)
    return ids, round(count / best, 2)


def by_transformers(folder: Path, ids: list[int], count: int) -> tuple[list[int], dict[str, Any]]:
    """Return the tokens that transformers makes, and its times."""
    torch, transformers = map(importlib.import_module, ("torch", "transformers"))  # peers, which may be missing
    began = time.perf_counter()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loaded = time.perf_counter() - began
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None}

    def made() -> list[int]:
        with torch.no_grad():
            return model.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist()

    theirs, speed = timed(made, count)
    return theirs, {"package": "transformers", "load_s": round(loaded, 2), "tokens_per_s": speed}


if __name__ == "__main__":
    main()
