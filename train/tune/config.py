"""The settings of a run of `train.tune` and their rules."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Self

from pejax.models import TransformerConfig
from train.engine.config import RunConfig, require_at_least, require_choice, run_folder
from train.engine.run_files import MODEL
from train.lm.config import Config as LanguageConfig
from train.tune.subject import decoder_source

METHODS = ("lora", "full")


@dataclasses.dataclass(frozen=True)
class Config(LanguageConfig):
    """Fine-tune a loaded language model on text, then measure its perplexity.

    The encoding, its trained length and the sizes of the model are those of the file: --pe, --width and so on are not
    given.
    """

    program = "tune"
    presets: ClassVar = {"default": {}}
    inherited = ()
    run_fields = (*RunConfig.run_fields, "eval_lengths", "eval_stride", "probe_every")
    eval_factors = (0.5, 1)
    later = ("windows", "restarts")
    first = ("model", "data", "extend", "length", "method", "steps", "lr", "eval_lengths", "out", "resume")

    preset: str = "default"  # the only one is called default
    model: str = ""  # folder from Hugging Face, or a GGUF file
    method: str = "lora"  # lora: low-rank changes of the linear layers; full: all parameters
    rank: int = 8  # rank of the changes of a layer, with --method=lora
    pe: str = "none"
    data: str = "topics"  # topics (of Python's help()), shakespeare, file:PATH, jsonl:PATH, tfds:NAME
    batch: int = 2  # windows per step, over all devices
    lr: float = 2e-4  # peak learning rate
    weight_decay: float = 0.0  # weight decay, of kernels only
    eval_limit: int = 2  # held-out windows of the longest length to evaluate on; 0 = all
    length: int = 0  # tokens of a training window; 0 = the trained length of the model
    steps: int = 20  # training steps; 0 = one pass over the training text
    warmup: int = 5  # steps of linear warm-up
    probe_every: int = 0  # steps between measurements of the loss on positions 0 to L and L to 2L; 0 = never
    log_every: int = 5  # steps between reports

    @property
    def trained(self) -> str:
        """The trained length, in words."""
        return f"{self.length} tokens"

    @property
    def default_name(self) -> str:
        """The name of the run folder where `out` is empty."""
        return f"{Path(self.model).stem}-{self.method}-{self.data.split(':')[0]}-{self.seed}"

    def validated(self) -> Self:
        """Return the config after checking it, with the fields of the model's file filled in.

        Raises:
            ValueError: naming the field, the rule and the value.
        """
        if not self.model:
            raise ValueError("model must name a folder from Hugging Face or a GGUF file: --model=PATH")
        require_choice(self, "method", *METHODS)
        require_at_least(self, 1, "rank")
        require_at_least(self, 0, "length")
        if self.init:
            raise ValueError(f"init must be empty: the model of --model is fine-tuned, got {self.init!r}")
        _require_apart(self.model, run_folder(self))
        model, _ = decoder_source(self.model)
        own = _fields(model)
        for name, value in own.items():
            if getattr(self, name) not in (value, _default(name)):
                raise ValueError(
                    f"{name} must be left out, it is that of the model, {value}; got {getattr(self, name)}"
                )
        filled = dataclasses.replace(self, **own, out=f"{run_folder(self)}", length=self.length or model.length)
        checked = super(Config, filled).validated()
        return dataclasses.replace(checked, extent=model.length)


def _require_apart(model: str, out: Path) -> None:
    """Check that a run does not write into the folder of its model, or replace it.

    Raises:
        ValueError: it would.
    """
    place, folder = Path(model).resolve(), out.resolve()
    if folder == place or folder / MODEL == place or (place.is_file() and folder == place.parent):
        raise ValueError(f"out must be another folder than that of the model, got {out} for the model {model}")


def _fields(model: TransformerConfig) -> dict[str, Any]:
    """Return the fields of a run that its model determines; where layers differ, from the first one."""
    first = model.layers[0]
    kinds = list(dict.fromkeys(layer.attention.pe for layer in model.layers))
    return {
        "pe": str(kinds[0].without_extension()),
        "width": model.width,
        "layers": len(model.layers),
        "heads": first.attention.heads,
        "kv_heads": first.attention.kv_heads,
    }


def _default(name: str) -> Any:
    return next(field.default for field in dataclasses.fields(Config) if field.name == name)
