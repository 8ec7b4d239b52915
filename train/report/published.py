"""The published comparison that ours resembles, and how the two differ: figures are facts, carried over by hand.

The source says "5,000 images across 50 classes for validation". ImageNet has 50 validation images of each class, so
these are 100 classes.

Source: "Positional Embeddings in Transformer Models: Evolution from Text to Vision Domains", a blog post dated
2025-04-28, section "Results": zero-shot top-1 of four vision transformers that were trained on ImageNet100.
"""

from train.report.blocks import Cell, Section, Table
from train.report.groups import Group

SOURCE = (
    '"Positional Embeddings in Transformer Models: Evolution from Text to Vision Domains" (blog post of 2025-04-28), '
    'section "Results"'
)
TRAINED = 224
"""Pixels."""

THEIRS = {
    96: (18.80, 16.82, 18.98, 19.60),
    128: (33.96, 30.84, 32.92, 36.44),
    160: (44.10, 42.96, 44.84, 50.28),
    192: (51.42, 49.22, 51.60, 55.84),
    224: (55.48, 53.86, 55.26, 60.74),
    256: (56.52, 55.80, 57.98, 61.52),
    288: (57.14, 56.52, 58.76, 64.00),
    320: (57.02, 55.86, 59.84, 64.62),
    352: (56.48, 55.22, 59.70, 65.54),
    384: (55.88, 54.16, 58.92, 65.76),
    416: (55.20, 53.50, 58.44, 65.24),
    448: (54.34, 52.40, 57.86, 64.24),
    480: (53.42, 51.48, 56.88, 63.56),
    512: (52.32, 49.80, 55.62, 62.20),
}
"""Image side in pixels -> top-1 in percent of each of `ENCODINGS`."""

ENCODINGS = ("learned", "none", "rope_mixed", "alibi")

THEY = {
    "data": "ImageNet100: about 130,000 training images of 100 classes; 5,000 validation images, 50 of each class",
    "trained at": "224 x 224 pixels",
    "epochs": "100 (50,000 steps, 10,000 of them warm-up)",
    "batch": "256",
    "model": "a vision transformer with a class token; its width and depth are not stated",
    "optimizer": "AdamW, peak learning rate 0.001, weight decay 0.05",
    "augmentation": "RandAugment(9, 0.5), Mixup 0.8, CutMix 1.0, random erasing 0.25, label smoothing 0.1",
    "seeds": "not stated: one number per model, without intervals",
    "learned beyond the trained size": "the table is interpolated",
    "machine": "two NVIDIA T4",
}


def published_section(group: Group, name: str) -> Section | None:
    """Return the published table beside ours, or None for a section without one of its encodings.

    Args:
        group: runs of images.
        name: anchor of the section.
    """
    ours = {series.label: series for series in group.series if series.label in ENCODINGS}
    what = next(iter(group.measures), "")
    if group.key.program != "vit" or not group.key.trained or not ours:
        return None
    labels = [label for label in ENCODINGS if label in ours]
    heads = ["side / trained side", "theirs, px", *(f"{label}, theirs" for label in ENCODINGS), "ours, px"]
    heads += [f"{label}, ours" for label in labels]
    rows = []
    for side, numbers in THEIRS.items():
        size = nearest(group.sizes(what), side / TRAINED, group.key.trained)
        cells = [Cell(f"{side / TRAINED:.2f}", side / TRAINED), Cell(f"{side}", side)]
        cells += [Cell(f"{number:.2f}", number) for number in numbers]
        cells.append(Cell("" if size is None else f"{size}", size))
        for label in labels:
            mean = ours[label].means[what].get(size) if size is not None else None
            cells.append(Cell("" if mean is None else f"{mean.mean:.1f}", None if mean is None else mean.mean))
        rows.append(tuple(cells))
    caption = "Top-1 in percent at image sides relative to the trained one: published, and in this report."
    text = (
        f"Theirs: {SOURCE}. The two are not measurements of one thing: the data, the images and the scale differ, as "
        "the second table says. Compare how a column changes with the size, not theirs with ours."
    )
    return Section(
        name, "Published results beside ours",
        (text, Table(caption, tuple(heads), tuple(rows)), _differences(group)),
    )  # fmt: skip


def nearest(sizes: list[int], ratio: float, trained: int) -> int | None:
    """Return the size whose ratio to the trained one is this one, to a hundredth, or None."""
    return next((size for size in sizes if abs(size / trained - ratio) < 0.01), None)


def _differences(group: Group) -> Table:
    settings, trained = dict(group.key.settings), group.key.trained
    seeds = sorted({len(series.seeds) for series in group.series})
    off = lambda value, text: text if value else "off"
    ours = {
        "data": f"{group.key.data}: {group.key.note}; {group.key.examples:,} test images measured",
        "trained at": f"{trained} x {trained} pixels",
        "epochs": f"{settings.get('epochs', 'unknown')}",
        "batch": f"{settings.get('batch', 'unknown')}",
        "model": f"width {settings.get('width')}, layers {settings.get('layers')}, heads {settings.get('heads')}, "
        f"patches of {settings.get('patch')}, pooling {settings.get('pool')}",
        "optimizer": _optimizer(group),
        "augmentation": f"RandAugment {off(settings.get('rand_augment'), 'on')}, "
        f"Mixup {off(settings.get('mixup'), settings.get('mixup'))}, "
        f"CutMix {off(settings.get('cutmix'), settings.get('cutmix'))}, "
        f"random erasing {off(settings.get('erasing'), settings.get('erasing'))}, "
        f"label smoothing {settings.get('label_smoothing')}",
        "seeds": " to ".join(f"{n}" for n in {seeds[0], seeds[-1]}),
        "learned beyond the trained size": "the table is interpolated (extend: none), as theirs",
        "machine": "see the versions and devices of this section",
    }
    rows = tuple((Cell(name), Cell(THEY[name]), Cell(ours[name])) for name in THEY)
    return Table("What differs between the two.", ("", "published", "this report"), rows)


def _optimizer(group: Group) -> str:
    configs = [run.config for series in group.series for run in series.runs if run.config is not None]
    describe = lambda c: f"{c.optimizer}, peak learning rate {c.lr:g}, weight decay {c.weight_decay:g}"
    return " or ".join(sorted({describe(config) for config in configs})) or "unknown"
