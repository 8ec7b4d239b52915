"""The settings of a run of `train.tune` and their rules."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from train.engine.config import run_folder
from train.engine.options import option, options
from train.lm.config import TextConfig

if TYPE_CHECKING:
    from pejax.models import TransformerConfig


@options
class Config(TextConfig):
    """Fine-tune a loaded language model on text, then measure its perplexity.

    The encoding, its trained length and the sizes of the model are those of the file, and recorded.
    """

    program = "tune"
    presets: ClassVar = {"default": {}}
    former: ClassVar = {
        "style": "llama", "hidden": 0, "qk_norm": False, "soft_cap": 0.0, "tied": False, "probe_every": None,
    }  # fmt: skip
    eval_factors = (0.5, 1)
    first = ("model", "data", "extend", "length", "method", "steps", "lr", "eval_lengths", "out", "resume")

    preset: str = option("default", recorded=True)
    init: str = option("", recorded=True)
    model: str = option("", "folder from Hugging Face, or a GGUF file", "data")
    method: str = option(
        "lora",
        "lora: low-rank changes of the linear layers; full: all parameters",
        "training",
        choices=("lora", "full"),
    )
    rank: int = option(8, "rank of the changes of a layer, with --method=lora", "training", at_least=1)
    pe: str = option("none", recorded=True)
    width: int = option(64, recorded=True)
    layers: int = option(3, recorded=True)
    heads: int = option(4, recorded=True)
    kv_heads: int = option(0, recorded=True)
    extent: int = option(0, recorded=True)
    validation: float = option(0.0, late=False)
    data: str = option("topics", "topics (of Python's help()), shakespeare, file:PATH, jsonl:PATH, tfds:NAME")
    batch: int = option(2, "windows per step, over all devices")
    lr: float = option(2e-4, "peak learning rate")
    weight_decay: float = option(0.0, "weight decay, of kernels only")
    eval_limit: int = option(2, "held-out windows of the longest length to evaluate on; 0 = all")
    length: int = option(0, "tokens of a training window; 0 = the trained length of the model", at_least=0)
    steps: int = option(20, "training steps; 0 = one pass over the training text")
    warmup: int = option(5, "steps of linear warm-up")
    log_every: int = option(5, "steps between reports")

    @property
    def trained(self) -> str:
        """The trained length, in words."""
        return f"{self.length} tokens"

    @property
    def default_name(self) -> str:
        """The name of the run folder where `out` is empty."""
        return f"{Path(self.model).stem}-{self.method}-{self.data.split(':')[0]}-{self.seed}"

    def validated(self) -> Self:
        """Return the config after checking it, with the fields of the model's file filled in."""
        if not self.model:
            raise ValueError("model must name a folder from Hugging Face or a GGUF file: --model=PATH")
        if len(self.extensions) > 1:
            raise ValueError(f"extend must be the one extension that the model is trained with, got {self.extend!r}")
        _require_apart(self.model, run_folder(self))
        from train.tune.subject import decoder_source

        model, _ = decoder_source(self.model)
        config = dataclasses.replace(
            self, **_model_settings(model), out=f"{run_folder(self)}", length=self.length or model.length
        )
        return dataclasses.replace(super(Config, config).validated(), extent=model.length)


def _require_apart(model: str, out: Path) -> None:
    """Check that a run does not write into the folder of its model, or replace it."""
    from train.engine.run_files import MODEL

    place, folder = Path(model).resolve(), out.resolve()
    if folder == place or folder / MODEL == place or (place.is_file() and folder == place.parent):
        raise ValueError(f"out must be another folder than that of the model, got {out} for the model {model}")


def _model_settings(model: "TransformerConfig") -> dict[str, Any]:
    """Return the settings that the model determines; where layers differ, those of the first one."""
    first = model.layers[0]
    kinds = list(dict.fromkeys(layer.attention.pe for layer in model.layers))
    return {
        "pe": str(kinds[0].without_extension()),
        "width": model.width,
        "layers": len(model.layers),
        "heads": first.attention.heads,
        "kv_heads": first.attention.kv_heads,
    }
