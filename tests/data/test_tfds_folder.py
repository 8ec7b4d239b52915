"""Folders that TFDS has prepared, from somebody else: no code of theirs runs, and each refusal is one line."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from train.data.tfds_folder import open_prepared, require_own_classes

OWN = "tensorflow_datasets.core.features."
FOREIGN = "flowers.extra.Feature"
TEXT = {"pythonClassName": f"{OWN}text_feature.Text", "text": {}}


@pytest.fixture
def flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set in the working directory whose folder has a module; its features.json is to be written."""
    folder = tmp_path / "flowers" / "1.0.0"
    folder.mkdir(parents=True)
    (tmp_path / "flowers" / "extra.py").write_text("open('ran', 'w').close()")
    info = {"name": "flowers", "version": "1.0.0", "fileFormat": "array_record"}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "flowers-train.array_record-00000-of-00001").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return folder


NESTED = {
    "the only one": {"pythonClassName": FOREIGN, "jsonFeature": {"json": "{}"}},
    "in a dictionary": {
        "pythonClassName": f"{OWN}features_dict.FeaturesDict",
        "featuresDict": {"features": {"a": TEXT, "b": {"pythonClassName": FOREIGN, "text": {}}}},
    },
    "in a sequence": {
        "python_class_name": f"{OWN}sequence_feature.Sequence",
        "sequence": {"feature": {"python_class_name": FOREIGN, "text": {}}},
    },
    "in JSON in a text": {
        "pythonClassName": f"{OWN}features_dict.FeaturesDict",
        "jsonFeature": {"json": json.dumps({"a": {"type": FOREIGN, "content": {}}})},
    },
    "in the earlier form": {
        "type": f"{OWN}features_dict.FeaturesDict",
        "content": {"a": {"type": FOREIGN, "content": {}}},
    },
    "in a protobuf of that form": {
        "type": f"{OWN}features_dict.FeaturesDict",
        "proto_cls": "tensorflow_datasets.FeaturesDict",
        "content": json.dumps({"features": {"a": {"pythonClassName": FOREIGN, "text": {}}}}),
    },
}


@pytest.mark.parametrize("features", NESTED.values(), ids=NESTED)
def test_no_code_of_a_data_set_runs(flowers: Path, features: dict[str, Any]) -> None:
    (flowers / "features.json").write_text(json.dumps(features))
    with pytest.raises(ValueError, match=f"of tensorflow_datasets.core.features alone, .* got {FOREIGN} in "):
        open_prepared("flowers")
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", ["features.Text", f"{OWN}Text/../x", f" {OWN}a.B", f"{OWN[:-1]}x.Text", "x\ny", ""])
def test_classes_are_of_tfds(flowers: Path, name: str) -> None:
    (flowers / "features.json").write_text(json.dumps({"pythonClassName": name}))
    with pytest.raises(ValueError, match="features alone") as refusal:
        require_own_classes(flowers / "features.json")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff\xfe\0", None])
def test_a_broken_features_json_is_said_in_one_line(flowers: Path, content: bytes | None) -> None:
    path = flowers / "features.json"
    path.write_bytes(content) if content is not None else os.mkfifo(path)
    with pytest.raises(ValueError, match=r"must have a features.json that TFDS wrote, got .* names no class$"):
        require_own_classes(path)
