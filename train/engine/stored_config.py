"""The settings of a run in its folder: config.json, which is how a run is known.

Beside the fields of the program it holds

    program    name of the program that wrote it
    pejax      version of pejax that wrote it; 0.2.0 and earlier did not store it
    run        digest of the settings that the weights depend on; it is in the results of the run, too
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pejax
from train.engine.config import RunConfig
from train.engine.files import read_object, write_atomic
from train.engine.options import names_of

FILE = "config.json"
"""Name of the file in a run folder."""

MARKS = ("program", "pejax", "run")
"""Entries of config.json beside the fields of the program."""

UNMARKED = {"pe", "data", "seed", "out", "width", "layers", "heads", "batch", "lr", "checkpoint_every"}
"""Fields of every run of earlier versions, by which one without the marks is known."""

NOTHING: Mapping[str, Any] = MappingProxyType({})

Kind = TypeVar("Kind", bound=RunConfig)


def settings_digest(config: RunConfig, stored: Mapping[str, Any] = NOTHING) -> str:
    """Return a digest of the settings that the weights of a run depend on.

    A run of an earlier version keeps its digest: a setting that came later counts only where it is not at its default,
    and an option that is gone, since it changed nothing, still counts.

    Args:
        config: settings of the run.
        stored: its config.json, for the values of former options.
    """
    late, default = names_of(config, "late"), type(config)()
    settings = config.weights_settings()
    settings = {name: value for name, value in settings.items() if name not in late or value != getattr(default, name)}
    former = {name: stored.get(name, value) for name, value in config.former.items() if value is not None}
    content = json.dumps({"program": config.program, **former, **settings}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def save_config(config: RunConfig, folder: Path) -> None:
    """Write the config and its marks into the run folder as JSON."""
    marks = {"program": config.program, "pejax": pejax.__version__, "run": settings_digest(config)}
    write_atomic(folder / FILE, json.dumps({**marks, **dataclasses.asdict(config)}, indent=2) + "\n")


def load_config(kind: type[Kind], folder: Path) -> Kind:
    """Read the config of a run folder.

    Raises:
        ValueError: the folder has no config, one of another program or version, or one that was changed by hand.
    """
    stored = _stored(folder)
    if stored["program"] != kind.program:
        raise ValueError(f"{folder} must hold a run of train.{kind.program}, got one of train.{stored['program']}")
    try:
        config = from_dict(kind, {name: value for name, value in stored.items() if name not in MARKS})
    except ValueError as wrong:
        writer = " ".join(str(stored.get("pejax", "0.2.0 or earlier")).split())[:40]
        newer = ", which is newer than this one" if _is_newer(writer) else ""
        raise ValueError(f"{folder / FILE}, written by pejax {writer}{newer}: {wrong}") from None
    if stored.get("run", settings_digest(config, stored)) != settings_digest(config, stored):
        raise ValueError(f"{folder / FILE}: its settings must be those that the run was trained with, got changed ones")
    return config


def _is_newer(version: str) -> bool:
    """Return whether a version is newer than this one; of a copy that was not installed nobody knows."""
    theirs, ours = (tuple(map(int, re.findall(r"\d{1,9}", text)[:3])) for text in (version, pejax.__version__))
    return len(ours) == 3 and theirs > ours


def program_of(folder: Path) -> str:
    """Return the name of the program that made a run folder.

    Raises:
        ValueError: the folder has no config.
    """
    return _stored(folder)["program"]


def digest_of(folder: Path) -> str:
    """Return the digest of the settings in a run folder; empty where there is no config, or one without."""
    return f"{stored_settings(folder).get('run', '')}"


def stored_settings(folder: Path) -> dict[str, Any]:
    """Return the content of config.json in a run folder, unchecked; empty where there is none of a run."""
    try:
        return _stored(folder)
    except ValueError:
        return {}


def is_run(folder: Path) -> bool:
    """Return whether the config.json of a folder was written by a trainer."""
    try:
        stored = _stored(folder)
    except (OSError, ValueError):
        return False
    return {*MARKS} <= stored.keys() or stored.keys() >= UNMARKED


def _stored(folder: Path) -> dict[str, Any]:
    try:
        stored = read_object(folder / FILE)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"a run folder holds config.json, got {folder} without one") from None
    if "program" not in stored and not stored.keys() >= UNMARKED:
        raise ValueError(f"{folder / FILE} must be the config of a run, got one of something else")
    return {"program": "vit", **stored}  # the first runs, all of train.vit, did not store it


def from_dict(kind: type[Kind], stored: Mapping[str, Any]) -> Kind:
    """Return the config with the values that were stored as JSON, whose lists are tuples.

    Raises:
        ValueError: fields that this program does not have, missing ones, or a value of the wrong type.
    """
    defaults = dataclasses.asdict(kind())
    late = {name: defaults[name] for name in names_of(kind, "late")}
    stored = {**late, **{name: value for name, value in stored.items() if name not in kind.former}}
    if set(stored) != set(defaults):
        difference = sorted(set(stored) ^ set(defaults))[0]
        raise ValueError(f"a stored config must have exactly this program's fields, got a difference in {difference!r}")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    for name, default in defaults.items():
        value, number = values[name], isinstance(default, float) and type(values[name]) is int
        is_same_type = type(value) is type(default) and (default != () or all(type(item) is int for item in value))
        if not is_same_type and not number:
            raise ValueError(f"{name} must be of type {type(default).__name__}, got {value!r}")
    return kind(**values)


def require_same(stored: Kind, config: Kind, also: Collection[str] = ()) -> None:
    """Check that a checkpoint was made with this config.

    Args:
        stored: the config in the checkpoint.
        config: settings of this run.
        also: settings that must be equal, too, though a run may change them.

    Raises:
        ValueError: naming the first field that differs and both its values.
    """
    before, after = ({**dataclasses.asdict(source), **source.weights_settings()} for source in (stored, config))
    for name in after:
        if (name in also or name not in names_of(config, "free")) and before[name] != after[name]:
            raise ValueError(
                f"the checkpoint was made with {name}={before[name]!r}, this run has {name}={after[name]!r}"
            )


def as_of(config: Kind, stored: Kind) -> Kind:
    """Return a config as it was when a checkpoint was written; itself, unless the run was given more steps since.

    Args:
        config: settings of the run.
        stored: the config in the checkpoint.
    """
    ends = (*config.restarts, getattr(config, config.budget))
    earlier = len(stored.restarts)
    if ends[: earlier + 1] != (*stored.restarts, getattr(stored, config.budget)):
        return config
    return dataclasses.replace(config, **{config.budget: ends[earlier], "restarts": ends[:earlier]})


def require_fitting(before: Kind, config: Kind) -> None:
    """Check that the model of the run `init` has the shape of this run's model.

    Raises:
        ValueError: naming the first field that differs and both its values.
    """
    for name in names_of(config, "shape"):
        was, now = getattr(before, name), getattr(config, name)
        if was != now:
            raise ValueError(f"the model of {config.init} has {name}={was!r}, this run has {name}={now!r}")
