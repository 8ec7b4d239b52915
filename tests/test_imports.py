"""Imports run one way, and `import pejax` brings in nothing that it does not need: read from the syntax trees."""

import ast
import importlib.util
import pathlib
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CORE = {"jax", "jaxlib", "numpy", "jaxtyping", "chex"}

# What each part of the library may import of the library; a part not named here may import nothing of it.
MAY_IMPORT = {
    "bitcast": set(),
    "checks": set(),
    "encoding": {"checks"},
    "placed": {"encoding"},
    "positions": {"checks", "encoding"},
    "phases": {"bitcast", "checks"},
    "rotation": {"phases"},
    "spec": set(),
    "scaling": set(),
    "yarn": {"scaling"},
    "longrope": {"scaling"},
    "extension": {"scaling", "yarn", "longrope"},
    "search": {"extension", "phases"},
    "stretch": {"extension", "scaling", "spec"},
    "temperature": {"checks", "encoding", "phases", "spec"},
    "bands": {"encoding"},
    "squeeze": {"encoding"},
    "resize": {"checks", "encoding", "positions", "phases"},
    "relative": {"checks", "encoding", "phases"},
    "backward": set(),
    "diagonals": set(),
    "distance_network": {"backward", "diagonals", "encoding"},
    "encodings": {"checks", "encoding", "positions", "phases", "rotation", "relative", "backward", "distance_network"}
    | {"extension", "stretch", "resize"},
    "registry": {"encoding", "encodings", "extension", "bands", "squeeze", "spec", "temperature"} | {"placed"},
    "attention": {"bitcast", "checks", "encoding", "placed", "positions", "diagonals"},
    "models": {"encoding", "placed", "positions", "attention", "registry"},
    "explain": {"encoding"},
    "testing": {"encoding"},
}
TRAIN_ONLY = {"optax", "orbax", "grain", "tensorflow_datasets", "PIL", "tensorboardX", "rich", "simple_parsing"}
PEERS = {"torch", "transformers", "timm"}


def modules(folder: str) -> dict[str, pathlib.Path]:
    """Return the modules below a folder by dotted name."""
    names = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(path: pathlib.Path, module: str) -> set[str]:
    """Return the dotted names of the modules that a file imports, inside functions too."""
    found = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def part(dotted: str) -> str:
    """Return the part of the library that a dotted name is in: `pejax.encodings.rope.rope` is in `encodings`."""
    return dotted.split(".")[1] if "." in dotted else ""


PEJAX = modules("pejax")
TRAIN = modules("train")


@pytest.mark.parametrize("module", [name for name in PEJAX if part(name)])
def test_the_library_imports_one_way(module):
    """`encoding <- positions, phases <- extension, resize <- encodings <- registry`; `positions <- attention`."""
    own = part(module)
    inside = {name for name in imported(PEJAX[module], module) if name.split(".")[0] == "pejax"}
    strangers = {name for name in inside if part(name) != own and part(name) not in MAY_IMPORT[own]}
    assert not strangers, f"{module} imports {sorted(strangers)}"
    if own == "encodings" and module != "pejax.encodings":
        siblings = {name for name in inside if part(name) == own}
        assert not siblings, f"encodings never import each other: {module} imports {sorted(siblings)}"


@pytest.mark.parametrize("module", PEJAX)
def test_the_library_imports_little_from_outside(module):
    allowed = CORE | set(sys.stdlib_module_names) | {"pejax"} | ({"flax"} if part(module) == "models" else set())
    strangers = {name for name in imported(PEJAX[module], module) if name.split(".")[0] not in allowed}
    assert not strangers, f"{module} imports {sorted(strangers)}"


@pytest.mark.parametrize("module", TRAIN)
def test_training_imports_no_peer_and_no_test(module):
    roots = {name.split(".")[0] for name in imported(TRAIN[module], module)}
    assert not roots & (PEERS | {"tests", "benchmarks", "tensorflow"})


def test_importing_the_library_brings_in_nothing_heavy():
    heavy = sorted(TRAIN_ONLY | PEERS | {"flax", "matplotlib", "plotly", "hypothesis", "tensorflow", "train"})
    script = f"import pejax, sys; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_importing_the_library_brings_in_no_kernels():
    script = "import pejax, sys; print([name for name in sys.modules if 'pallas' in name])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"


def test_the_core_dependencies_are_the_ones_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {requirement.split(">")[0] for requirement in project["dependencies"]}
    roots = {name.split(".")[0] for module, path in PEJAX.items() for name in imported(path, module)}
    assert declared == (roots | {"flax"}) & (CORE | {"flax"}) - {"numpy", "jaxlib"}


def test_the_checker_sees_imports_of_every_form(tmp_path):
    file = tmp_path / "rope.py"
    file.write_text("from . import alibi\nfrom ..attention.api import attention\ndef f():\n    import torch.nn\n")
    assert imported(file, "pejax.encodings.rope") == {
        "pejax.encodings.alibi",
        "pejax.attention.api.attention",
        "torch.nn",
    }


# Loops that read their own tiles, where a barrier would cut the loop in two, and a kernel that XLA does not fold.
READ_BITS_THEMSELVES = {"pejax.bitcast", "pejax.attention.bits", "pejax.attention.tpu_tile"}


def test_bits_of_what_may_be_a_constant_are_read_behind_a_barrier():
    """XLA folds the bits of transposed constants wrongly (docs/known-traps.md)."""
    found = {module for module, path in {**PEJAX, **TRAIN}.items() if "bitcast_convert_type" in path.read_text()}
    assert found == READ_BITS_THEMSELVES
