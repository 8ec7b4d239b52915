"""Vision transformers of rope-vit as timm saves them: RoPE-Axial and RoPE-Mixed, also with a table of positions.

The config.json of timm has a name in place of sizes.
"""

import functools
from dataclasses import replace

from pejax._record.specs import EncodingSpec, Spec, SumSpec
from pejax.interop.architecture import Architecture, prefixed
from pejax.interop.config import Config
from pejax.models import ViTConfig, vit

NAMES = {
    "cls": "cls_token", "position": "pos_embed", "patch": "patch_embed.proj", "norm": "norm", "head": "head",
    **prefixed(
        "blocks.{n}.", norm_attention="norm1", norm_mlp="norm2", scale_attention="gamma_1", scale_mlp="gamma_2",
        qkv="attn.qkv", o="attn.proj", up="mlp.fc1", down="mlp.fc2",
    ),
    "frequencies": "rope.freqs",
}  # fmt: skip
INERT = ("architecture", "label_names", "label_descriptions")
SIZES = {"small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, layers and heads."""
ENCODINGS = {"": EncodingSpec("rope_axial", {"indexing": "xy"}), "_mixed": EncodingSpec("rope_mixed")}


def read(c: Config, name: str, pe: Spec) -> ViTConfig:
    """Read the config.json of a model with the sizes of its name."""
    width, layers, heads = SIZES[name]
    c.must("num_features", width)
    c.must("global_pool", "token")
    if c("model_args", {}):
        rule = f"{c.where}: model_args must be absent, or the sizes be given by load(path, config=vit(...))"
        raise ValueError(f"{rule}, got {c('model_args')}"[:400])
    pretrained = Config(c.object("pretrained_cfg"), f"{c.where}: pretrained_cfg")
    size = pretrained("input_size", [3, 224, 224])
    if not isinstance(size, list) or len(size) != 3 or any(type(number) is not int or number < 1 for number in size):
        raise ValueError(f"{pretrained.where}: input_size must be channels, height and width, got {size!r}")
    channels, *image = size
    classes = c.count("num_classes", pretrained.count("num_classes", 1000, least=0), least=0)
    config = vit((image[0], image[1]), 16, channels, max(classes, 1), width, layers, heads, pe=pe, layer_scale=1e-5)
    return replace(config, classes=classes)


def sizes_missing(c: Config) -> ViTConfig:
    """Refuse a name that does not say the sizes."""
    rule = f"architecture must be one of {', '.join(ARCHITECTURES)}, or the sizes be given by config=vit(...)"
    raise ValueError(f"{c.where}: {rule}, got {c('architecture')!r}")


def _architecture(reader: functools.partial[ViTConfig]) -> Architecture:
    return Architecture(reader, NAMES, inert=INERT, batched=True)


ARCHITECTURES = {
    f"vit_{size}_patch16_rope{mixed}{ape}_224": _architecture(functools.partial(read, name=size, pe=pe))
    for size in SIZES
    for mixed, rope in ENCODINGS.items()
    for ape, pe in {"": rope, "_ape": SumSpec((EncodingSpec("learned"), rope))}.items()
}
"""By the `architecture` of timm's config.json."""

SIZES_GIVEN = Architecture(sizes_missing, NAMES, inert=INERT, batched=True)
"""Of any other name, where the sizes are given."""
