"""Imports run one way, and `import pejax` brings in nothing that it does not need: read from the syntax trees."""

import ast
import importlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CORE = {"jax", "jaxlib", "numpy", "jaxtyping", "chex"}

# The rooms of the library, a folder or a module at the root, and what each may import of the library beside itself.
MAY_IMPORT = {
    "_ops": set(),
    "_process": set(),
    "_record": {"_ops"},
    "_tokens": {"_ops", "_record"},
    "_placement": {"_ops", "_tokens"},
    "placement": {"_placement"},
    "_extensions": {"_ops", "_record", "_tokens"},
    "extensions": {"_extensions", "_record"},
    "_encodings": {"_extensions", "_ops", "_record", "_tokens", "extensions"},
    "encodings": {"_encodings", "_record"},
    "functions": {"_encodings", "_extensions", "_ops"},
    "_naming": {"_encodings", "_record", "encodings", "extensions"},
    "specs": {"_naming", "_record"},
    "testing": {"_attention", "_record"},
    "_attention": {"_ops", "_record", "_tokens"},
    "models": {"_attention", "_naming", "_ops", "_process", "_record", "_tokens"},
    "interop": {"_ops", "_process", "_record", "extensions", "models"},
    "_visualize": {
        *("_attention", "_encodings", "_extensions", "_naming", "_ops", "_process", "_record", "_tokens"),
        *("encodings", "extensions"),
    },
    "visualize": {"_process", "_visualize"},
}
BELOW_ALL = {"_calls"}
"""Parts that every other may import; they import none but these."""
# Within attention: below the calls at its root, the implementations; below those, what they share.
ATTENTION = {
    "core": {"core"},
    "xla": {"core", "xla"},
    "kernels": {"core", "xla", "kernels"},
    "gpu": {"core", "kernels", "gpu"},
    "mosaic": {"core", "kernels", "mosaic"},
    "tpu": {"core", "kernels", "tpu"},
}

# Within the models, from configs up to generation; the modules at the root are below `parts`.
MODELS = {
    "configs": {"configs"},
    "parts": {"configs", "execution", "parts", "sharding"},
    "stack": {"configs", "execution", "parts", "sharding", "stack"},
    "networks": {"configs", "execution", "networks", "parts", "sharding", "stack"},
    "generation": {"execution", "generation", "networks", "parts", "stack"},
}

# The rooms of the trainers, likewise; `evaluate` and `replay` import the program of the run that they are given.
TRAIN_MAY_IMPORT = {
    "devices": set(),
    "data": {"devices"},
    "engine": {"data", "devices"},
    "vit": {"data", "devices", "engine"},
    "lm": {"data", "devices", "engine"},
    "seq2seq": {"devices", "engine"},
    "dit": {"data", "devices", "engine"},
    "tune": {"data", "devices", "engine", "lm"},
    "extend": {"data", "devices", "engine", "lm", "tune"},
    "plan": {"devices", "engine", "lm", "seq2seq", "vit", "dit"},
    "evaluate": {"devices", "engine"},
    "compare": {"devices", "engine", "evaluate"},
    "replay": {"devices", "engine", "evaluate"},
    "generate": {"data", "devices", "engine", "lm", "runs"},
    "export": {"data", "devices", "engine", "lm", "runs"},
    "embed": {"devices", "engine"},
    "runs": {"devices", "engine"},
    "report": {"compare", "devices", "engine", "evaluate", "plan"},
}
TRAIN_ONLY = {"optax", "orbax", "grain", "tensorflow_datasets", "PIL", "tensorboardX", "rich", "simple_parsing"}
PEERS = {"diffusers", "torch", "transformers", "timm"}
DRAWING = {"matplotlib", "plotly", "PIL"}


def modules(folder: str) -> dict[str, pathlib.Path]:
    """Return the modules below a folder by dotted name."""
    names = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(path: pathlib.Path, module: str) -> set[str]:
    """Return the dotted names of the modules that a file imports, inside functions too."""
    result = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            result |= {f"{base}.{alias.name}" for alias in node.names}
    return result


def part(dotted: str) -> str:
    """Return the part of the library that a dotted name is in: `pejax._encodings.rope.rope` is in `encodings`."""
    return dotted.split(".")[1] if "." in dotted else ""


PEJAX = modules("pejax")
TRAIN = modules("train")


def inside(module: str) -> set[str]:
    """Return what a module of the library imports of the library."""
    return {name for name in imported(PEJAX[module], module) if name.split(".")[0] == "pejax"}


@pytest.mark.parametrize("module", [name for name in PEJAX if part(name)])
def test_the_library_imports_one_way(module):
    own = part(module)
    strangers = {name for name in inside(module) if part(name) not in {own, *MAY_IMPORT.get(own, ()), *BELOW_ALL}}
    assert not strangers, f"{module} imports {sorted(strangers)}"
    if own == "_encodings":
        siblings = {name for name in inside(module) if part(name) == own and ".factory." not in name}
        assert not siblings, f"encodings never import each other: {module} imports {sorted(siblings)}"


@pytest.mark.parametrize("module", [name for name in PEJAX if name.startswith(("pejax._attention.", "pejax.models."))])
def test_rooms_within_a_room_import_one_way(module):
    home, room = module.split(".")[1:3]
    rooms = {"_attention": ATTENTION, "models": MODELS}[home]
    if room in rooms:
        others = {name.split(".")[2] for name in inside(module) if part(name) == home}
        assert others <= rooms[room], f"{module} imports {sorted(others - rooms[room])}"


@pytest.mark.parametrize("module", [*PEJAX, *(name for name in TRAIN if not name.endswith("__main__"))])
def test_no_public_name_hides_a_module(module):
    """`import pejax.x.y as name` gives the module `pejax.x.y`."""
    importlib.import_module(module)
    home, _, name = module.rpartition(".")
    assert not home or getattr(sys.modules[home], name) is sys.modules[module]


@pytest.mark.parametrize("module", PEJAX)
def test_the_library_imports_little_from_outside(module):
    interop = {"flax", "gguf", "jinja2", "safetensors", "tokenizers"}
    extra = {"models": {"flax"}, "interop": interop, "_visualize": DRAWING}.get(part(module), set())
    allowed = CORE | set(sys.stdlib_module_names) | {"pejax"} | extra
    strangers = {name for name in imported(PEJAX[module], module) if name.split(".")[0] not in allowed}
    assert not strangers, f"{module} imports {sorted(strangers)}"


@pytest.mark.slow
def test_drawing_packages_are_imported_when_a_picture_is_drawn():
    script = f"import pejax.visualize, sys; print([one for one in {sorted(DRAWING)} if one in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("module", [name for name in TRAIN if part(name)])
def test_the_trainers_import_one_way(module):
    own = part(module)
    result = {part(name) for name in imported(TRAIN[module], module) if name.split(".")[0] == "train"}
    assert result - {own} <= TRAIN_MAY_IMPORT[own], f"{module} imports {sorted(result - {own} - TRAIN_MAY_IMPORT[own])}"


@pytest.mark.parametrize("module", TRAIN)
def test_training_imports_no_peer_and_no_test(module):
    roots = {name.split(".")[0] for name in imported(TRAIN[module], module)}
    assert not roots & (PEERS | {"tests", "benchmarks", "tensorflow"})


def test_importing_the_library_brings_in_nothing_heavy_and_no_kernels():
    heavy = sorted(TRAIN_ONLY | PEERS | DRAWING | {"flax", "hypothesis", "tensorflow", "train"})
    script = f"import pejax, sys; print([name for name in sys.modules if name in {heavy} or 'pallas' in name])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_copy_of_the_repository_that_is_not_installed_can_be_imported():
    script = """if True:
    import importlib.metadata
    installed = importlib.metadata.version
    def version(name):
        if name == "pejax":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)
    importlib.metadata.version = version
    import pejax
    print(pejax.__version__)
    """
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "0+copy\n"


@pytest.mark.slow
def test_the_models_of_the_trainers_need_no_package_of_pipelines_and_command_lines():
    """So that they train from batches that are made ahead, on machines with JAX, Flax, optax and orbax alone."""
    unneeded = ["array_record", "gguf", "grain", "simple_parsing", "tensorboardX", "tensorflow_datasets"]
    script = f"import sys; sys.modules.update(dict.fromkeys({unneeded})); import train.vit.model, train.lm.model"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_core_dependencies_are_the_ones_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {requirement.split(">")[0] for requirement in project["dependencies"]}
    roots = {name.split(".")[0] for module, path in PEJAX.items() for name in imported(path, module)}
    assert declared == roots & CORE - {"numpy", "jaxlib"}
    assert project["optional-dependencies"]["models"][0].split(">")[0] == "flax"


def test_the_checker_sees_imports_of_every_form(tmp_path):
    file = tmp_path / "rope.py"
    file.write_text("from . import alibi\nfrom ..attention.api import attention\ndef f():\n    import torch.nn\n")
    assert imported(file, "pejax._encodings.rope") == {
        "pejax._encodings.alibi",
        "pejax.attention.api.attention",
        "torch.nn",
    }


# Loops that read their own tiles, where a barrier would cut the loop in two; pairs of channels behind a reshape, which
# XLA folds rightly (tests/ops/test_linear_rotation.py); and a kernel that XLA does not fold.
READ_BITS_THEMSELVES = {
    "pejax._ops.bitcast",
    "pejax._ops.bfloat16",
    "pejax._ops.linear_rotation",
    "pejax._attention.tpu.tpu_tile",
}


def test_bits_of_what_may_be_a_constant_are_read_behind_a_barrier():
    """XLA folds the bits of transposed constants wrongly (docs/known-traps.md)."""
    result = {module for module, path in {**PEJAX, **TRAIN}.items() if "bitcast_convert_type" in path.read_text()}
    assert result == READ_BITS_THEMSELVES


# The only rooms that speak of how XLA compiles for CPUs, and hold what is written as it is for its sake.
FORMS_FOR_CPU = ("pejax._ops.", "pejax._attention.xla.")


def test_only_operations_and_their_tiles_are_written_for_one_compiler():
    result = {module for module, path in PEJAX.items() if re.search(r"XLA(:| on (a )?)CPU", path.read_text())}
    strangers = {module for module in result if not module.startswith(FORMS_FOR_CPU)}
    assert not strangers, f"XLA:CPU may be spoken of in {' and '.join(FORMS_FOR_CPU)} alone, is in {sorted(strangers)}"
    trainers = {module for module, path in TRAIN.items() if "XLA:CPU" in path.read_text()}
    assert trainers <= {"train.devices.cpu"}


def test_modules_that_need_extras_are_imported_when_they_are_used():
    names = [f"pejax.{name}.__name__" for name in ("interop", "models.ViT", "testing", "visualize")]
    script = f"import pejax; print({', '.join(names)})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == ["pejax.interop", "ViT", "pejax.testing", "pejax.visualize"]


def test_no_module_of_the_library_imports_itself_through_others():
    """Imports inside functions, which run later, are not counted."""
    arrows = {}
    for module, path in PEJAX.items():
        top = ast.Module([node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)], [])
        names = {f"{node.module}.{alias.name}" for node in top.body for alias in node.names}
        arrows[module] = {name if name in PEJAX else name.rpartition(".")[0] for name in names} & PEJAX.keys() - {
            module
        }
    while ends := {module for module, targets in arrows.items() if not targets & arrows.keys()}:
        arrows = {module: targets for module, targets in arrows.items() if module not in ends}
    assert not arrows, f"in a circle, or above one: {sorted(arrows)}"
