"""Checks of a source that need the values of its tensors: tied heads, other copies, and computed tables."""

import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from pejax._record.specs import EncodingSpec
from pejax.extensions import EXTENSIONS
from pejax.interop.config import Config
from pejax.interop.files import Reader
from pejax.interop.source import (
    Source,
    carried_tensors,
    source_of,
    table_name,
    tables_with_skipped_rows,
    tokens_with_rows,
)
from pejax.interop.stacks import head_stack, with_head
from pejax.models import TransformerConfig, ViTConfig


def with_values(source: Source, read: Reader) -> Source:
    """Return the source with its carried values, and with an untied head if the head in the file is not a copy.

    Args:
        source: source of a file, of which everything but the values is checked.
        read: function that reads the values of its tensors.

    Raises:
        ValueError: a copy or a fixed tensor with other values than the model's.
    """
    if source.head_copy is not None and not same_bytes(read(source.head_copy, ()), read(table_name(source), ())):
        source = _untied(source)
    source = _with_stored_rotation(source, read)
    _check_values(source, read)
    carried = {name: np.array(read(name, ())) for name in carried_tensors(source)}
    carried |= {table.tensor: np.array(read(table.tensor, table.before)) for table in tables_with_skipped_rows(source)}
    carried |= {token.tensor: np.array(read(token.tensor, ())) for token in tokens_with_rows(source)}
    return replace(source, carried=carried)


def _untied(source: Source) -> Source:
    """Return the source with an untied head."""
    source_config = source.config
    head = None if isinstance(source_config, ViTConfig) else head_stack(source_config).head
    if head is not None and not isinstance(source_config, ViTConfig):
        source_config = with_head(source_config, replace(head, tied=False))
    config = {**source.config_json, "tie_word_embeddings": False}
    changes_more = source.architecture.read(Config(config)) != source_config  # in T5, the flag also sets a scale
    config = source.config_json if changes_more else config
    return source_of(config, source_config, source.architecture, source.tensors, source.ignored)


def _with_stored_rotation(source: Source, read: Reader) -> Source:
    """Return the source with the frequencies that its file stores, if they are not those of config.json.

    Raises:
        ValueError: frequencies of another number than the pairs of channels, not above 0, or not alike in all layers.
    """
    pattern, text = source.architecture.stored_rotation, source.config
    names = [name for name in source.tensors if pattern and re.search(pattern, name)]
    pe = text.layers[0].attention.pe if names and isinstance(text, TransformerConfig) else None
    if not isinstance(pe, EncodingSpec) or not isinstance(text, TransformerConfig) or pe.name != "rope":
        return source
    channels, base = text.layers[0].attention.head_dim, float(dict(pe.options)["base"])
    exact = base ** -(np.arange(0, channels, 2) / channels)
    stored = [read(name, ()).astype(np.float64) for name in names]
    first = stored[0]
    for name, x in zip(names, stored, strict=True):
        if x.shape != exact.shape or not np.all((x > 0) & np.isfinite(x)) or np.any(x != first):
            rule = f"{name} must hold {len(exact)} frequencies above 0, the same in all layers"
            raise ValueError(f"{rule}, got {x.tolist()}"[:400])
    if np.allclose(first, exact, rtol=1e-6, atol=0.0):
        return source
    factors = tuple((exact / first).tolist())
    scaling = {"long_factors": factors, "short_factors": factors, "factor": 1.0, "attention_factor": 1.0}
    pe = pe.extended(EXTENSIONS["longrope"](trained_length=text.length, **scaling))
    own = lambda layer: replace(layer, attention=replace(layer.attention, pe=pe))
    config = replace(text, layers=tuple(map(own, text.layers)))
    return source_of(source.config_json, config, source.architecture, source.tensors, source.ignored)


def same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    as_integers = lambda x: x.view(f"u{x.dtype.itemsize}")
    return one.dtype == other.dtype and np.array_equal(as_integers(one), as_integers(other))


def _check_values(source: Source, read: Reader) -> None:
    """Raise ValueError for a copy or a fixed tensor with other values than the model's."""
    for copy, original in source.copies.items():
        if not same_bytes(read(copy, ()), read(original, ())):
            raise ValueError(f"{copy} must be the same as {original}, got other values")
    for pattern, values in source.architecture.fixed:
        for name in (name for name in source.tensors if re.search(pattern, name)):
            expected, stored = values(source.config), read(name, ())
            if stored.shape != expected.shape:
                raise ValueError(f"{name} must have shape {expected.shape} per config.json, got {stored.shape}")
            largest = float(np.max(np.abs(stored.astype(np.float64) - expected)))
            if not largest <= max(1e-5, float(jnp.finfo(stored.dtype).eps)):
                rule = f"{name} must have the values of {values.__name__}, as in the model"
                raise ValueError(f"{rule}, got values that differ by {largest:.3g}")
