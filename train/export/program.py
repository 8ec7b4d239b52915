"""Write the model of a run of train.lm or train.vit as a folder that transformers and pejax.interop load.

    python -m train.export --model=runs/rope-shakespeare-0 --out=shakespeare

A text model is written as GPT-2, Llama, Qwen3, SmolLM3 or StarCoder 2, with the tokenizer of its data, and a ViT that
has learned positions and `--pool=cls` as ViT, with the names of its classes. Others are refused: they have no class.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pejax import interop
from pejax.models import Decoder, ViT
from train.data import images
from train.data.text.loading import load_text
from train.data.text.tokenizers import Bytes, Library, byte_tokenizer
from train.engine.heartbeat import working
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.terminal import user_console
from train.export.options import ExportOptions, parser
from train.lm.config import Config as TextConfig
from train.runs import LoadedRun, load_run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options, console = parser(__doc__ or "").parse_args(argv).options, user_console()
    with stop_on_signals(lambda: "nothing is written"), report_errors(ValueError, TypeError, OSError, ImportError):
        with working(console, "loading"):
            run = load_run(options.model, data=options.data)
        name = export(run, options)
        console.print(f"wrote {options.out}: step {run.step:,} of {options.model}, as {name}")
    return 0


def export(run: LoadedRun, options: ExportOptions) -> str:
    """Write the model of a run as a folder, which appears whole or not at all, and return its class of transformers.

    Raises:
        ValueError: a model that no class of transformers computes, or a folder that is not empty.
    """
    model = run.model
    if not isinstance(model, Decoder | ViT):
        kind = type(model).__name__
        raise ValueError(
            f"model must be a run of train.lm or train.vit, as transformers has no {kind}, got {options.model}"
        )
    source = interop.source_from_model(model, dtype=options.dtype)
    keys, files = _of_text(run.config) if isinstance(run.config, TextConfig) else _of_pictures(run.config)
    with tempfile.TemporaryDirectory() as beside:
        for file, content in files.items():
            Path(beside, file).write_text(content, encoding="utf-8")
        config_json = {**source.config_json, **keys}
        interop.save(model, options.out, replace(source, config_json=config_json, origin=Path(beside)))
    return config_json["architectures"][0]


def _of_text(config: TextConfig) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the keys of config.json, none for a text, and the files of its tokenizer by their names."""
    tokenizer = load_text(config.data, config.validation, config.windows).tokenizer
    if not isinstance(tokenizer, Bytes | Library):
        raise ValueError(f"the tokenizer of a run must be bytes or of the package tokenizers, got {tokenizer.identity}")
    library = tokenizer.tokenizer if isinstance(tokenizer, Library) else byte_tokenizer()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.extent or config.length}
    return {}, {"tokenizer.json": library.to_str(), "tokenizer_config.json": json.dumps(settings, indent=2)}


def _of_pictures(config: Any) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the labels, for config.json, and the file of how pictures in color are prepared, by its name."""
    dataset = images.load(config.data, size=config.size, validation=config.validation)
    labels = dict(enumerate(dataset.classes))
    prepared = {
        "image_processor_type": "ViTImageProcessor", "size": {"height": config.size, "width": config.size},
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(dataset.mean),
        "image_std": list(dataset.std),
    }  # fmt: skip
    keys = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    # Processors of transformers read all pictures as RGB.
    return keys, {"preprocessor_config.json": json.dumps(prepared, indent=2)} if dataset.channels == 3 else {}
