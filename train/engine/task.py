"""The task of a program: its data, model, loss and evaluation, as one record for the session."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array
from rich.console import Console

from pejax import Dims, make_encoding, merge_params
from pejax.specs import LayerPattern
from pejax.testing import assert_norm_preserved, assert_shift_invariant, assert_tile_consistent, shift_deviation
from train.devices.memory import FLOAT, host_memory, require_room
from train.engine.config import RunConfig
from train.engine.loop import Metrics
from train.engine.progress import Unit
from train.engine.results import Evaluation
from train.engine.update import Recipe

if TYPE_CHECKING:
    import grain

    from train.engine.abstract_step import AbstractStep

Model = TypeVar("Model", bound=nnx.Module)


class Split(Generic[Model]):
    """A model, split into a static definition and parameters, which are a plain pytree of dicts.

    Attributes:
        prototype: the model with shapes instead of arrays.
        variables: its state: shapes with the names of their axes.
        shapes: shapes of the parameters, as a pytree of dicts.

    Args:
        make: makes the model with random parameters.

    Raises:
        ValueError: the model or its encoding refuses its config.
    """

    def __init__(self, make: Callable[[nnx.Rngs], Model]) -> None:
        self._make = make
        self.prototype: Model = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
        self._static, self.variables = nnx.split(self.prototype)
        self.shapes = nnx.to_pure_dict(self.variables)

    def init(self, key: Array, shardings: Any = None) -> Any:
        """Return random parameters; each device computes its own shards."""

        def draw(key: Array) -> Any:
            return nnx.to_pure_dict(nnx.state(self._make(nnx.Rngs(key))))

        return jax.jit(draw, out_shardings=shardings)(key)

    def model(self, params: Any) -> Model:
        """Return the model with these parameters."""
        state = jax.tree.map(lambda leaf: leaf, self.variables)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(self._static, state)


class Task(NamedTuple):
    """Everything that a session needs to train one config.

    Attributes:
        split: the model.
        identity: identity of the data, different if the content differs; stored in checkpoints.
        about: the trained size or length and the data in a few words, for the first line of output.
        unit: unit that `loss` counts.
        sums: names of the sums that `loss` returns, `loss` and `count` among them.
        steps: total number of training steps.
        per_epoch: steps per epoch.
        warmup: steps of linear warm-up.
        batches: `(step, rows) -> iterator`, endless, over these rows of each training batch from this step on.
        loss: `(params, batch, key, *, execution) -> (mean loss, sums)`.
        kv_heads: key heads of a layer, sharded over the devices of `tensor`.
        length: tokens of an example, sharded over the devices of `sequence`.
        laws: `(params) -> line` with the results of the laws that the encoding was tested against.
        init_split: `(config) -> split`, the model of the run `init`.
        params_from_init: `(that split, its params) -> params` of this model.
        evaluate: `(params, *, step, mesh, console) -> evaluations`, one for each extension.
        probe: `(params) -> values` that are reported every `probe_every` steps.
        probe_every: steps between probes; 0 = no probes.
        flops: FLOPs of a step, as `train.devices.flops` counts them; 0 = unknown.
        head_entropies: `(params, size or length) -> entropies (L, H)` of attention on a few test examples, indexed as
            in `EntropyExecution`; raises ValueError if the encoding refuses the size. None = not measured.
        restarts: steps at which the finished run was given more.
        notes: lines for the user before training, such as what will not be measured.
        frozen: arrays on the devices that `loss` takes as `frozen=` and training does not change. None = none.
        export: `(params, console)` writes the trained model for others into the run folder. None = it does not.
    """

    split: Split
    identity: str
    about: str
    unit: Unit
    sums: tuple[str, ...]
    steps: int
    per_epoch: int
    warmup: int
    batches: "Callable[[int, range], grain.DatasetIterator]"
    loss: Callable[..., tuple[Array, Metrics]]
    kv_heads: int
    length: int
    laws: Callable[[Any], str]
    init_split: Callable[[Any], Split]
    params_from_init: Callable[[Any, Any], Any]
    evaluate: "Evaluate"
    probe: Callable[[Any], dict[str, float]] | None = None
    probe_every: int = 0
    flops: int = 0
    head_entropies: Callable[[Any, int], list[list[Array]]] | None = None
    restarts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    frozen: Any = None
    export: Callable[[Any, Console], None] | None = None


class Evaluate(Protocol):
    """The evaluation of a task."""

    def __call__(self, params: Any, *, step: int, mesh: Mesh, console: Console) -> Sequence[Evaluation]:
        """Evaluate the parameters of this step, which are on the devices."""
        ...


class Facts(NamedTuple):
    """What a model must know of its data: V, tokens of a vocabulary, or channels and classes of images."""

    vocab: int = 0
    channels: int = 0
    classes: int = 0


class Program(NamedTuple):
    """A program `python -m train.NAME`; its module has it as `PROGRAM`.

    Attributes:
        config: the class of its config.
        model: `(config, facts) -> split`; raises ValueError if the config does not fit the model. None = it is loaded.
        step: `(split) -> step on shapes`, for `train.plan`. None = it is not planned.
        task: `(config) -> task`; raises ValueError if the config does not fit the data, the model or the encoding.
        results: class of its evaluations.
        errors: exceptions of the data during training that are reported in one line.
        comparison: options of the `train.compare` to try after a run; empty = nothing is suggested.
        docstring: docstring of its module, which `--help` shows: a sentence, examples, and what the run folder has.
    """

    config: type[RunConfig]
    task: Callable[[Any], Task]
    results: type[Evaluation]
    model: Callable[[Any, Facts], Split] | None = None
    step: "Callable[[Any], AbstractStep] | None" = None
    errors: tuple[type[Exception], ...] = ()
    comparison: str = ""
    docstring: str = ""

    def abstract_step(self, config: RunConfig, facts: Facts) -> "AbstractStep":
        """Return the step of a config on shapes.

        Raises:
            ValueError: the program cannot be planned, or the config does not fit the model.
        """
        if self.model is None or self.step is None:
            raise ValueError(f"train.{config.program} has no step that can be planned: its model is loaded")
        return self.step(self.model(config, facts))

    def next_commands(self, config: RunConfig) -> list[str]:
        """Return the commands to try after a run: a comparison with other encodings, and a page of all runs."""
        if not self.comparison:
            return []
        encodings = ",".join(list(dict.fromkeys([config.pe, "learned", "alibi", "rope_mixed"]))[:3])
        options = f'--pe="{encodings}" --data="{config.data}" {self.comparison} --seeds=1'
        return [
            f"python -m train.compare {options}   the same for other encodings",
            "python -m train.report runs   a page of all runs",
        ]


def recipe(config: RunConfig, optimizer: optax.GradientTransformation, sums: tuple[str, ...]) -> Recipe:
    """Return the recipe of a training step: everything except the loss."""
    return Recipe(optimizer, sums, config.clip, config.seed, config.accumulate, config.ema, config.spike)


def params_from_init(config: RunConfig, shapes: Any, params: Any) -> Any:
    """Return the parameters of the run `init` for another model, without those that it does not need.

    Args:
        config: settings of the new run.
        shapes: shapes of its parameters.
        params: parameters of the run `init`.

    Raises:
        ValueError: a parameter is missing or has another shape.
    """
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}

    def take(path: Any, like: Any) -> Array:
        name = jax.tree_util.keystr(path)
        if name not in leaves:
            raise ValueError(f"pe={config.pe} needs {name}, which the run {config.init} does not have")
        if leaves[name].shape != like.shape:
            raise ValueError(f"this run needs {name} of shape {like.shape}, {config.init} has {leaves[name].shape}")
        return leaves[name]

    return jax.tree_util.tree_map_with_path(take, shapes)


def refusal(run: Callable[..., Any], *shapes: Any) -> str:
    """Return why a function of a model refuses arguments of these shapes, in one line; empty where it accepts them."""
    try:
        jax.eval_shape(run, *shapes)
    except ValueError as refused:
        return " ".join(str(refused).split())
    return ""


def layer_params(params: Any, layer: int) -> dict[str, Any]:
    """Return the parameters of the first encoding for one layer of the first kind: the shared ones and its own."""
    layer_leaves = jax.tree.map(lambda leaf: leaf[layer], params["layers"]["blocks"]["attention"].get("position", {}))
    return merge_params(params.get("position", {}), layer_leaves)


def laws(pattern: LayerPattern, params: Any, dims: Dims) -> str:
    """Test an initialized encoding against its laws, and return one line with the measured deviations.

    Context extensions are left out, because some sharpen the logits, and so change norms, by design.

    Args:
        pattern: encodings of the layers; the first is tested.
        params: parameters of the encoding, for one layer.
        dims: the encoding was made for these.

    Raises:
        AssertionError: a law that the encoding declares does not hold.
    """
    encoding = make_encoding(pattern.specs[0].without_extension(), dims)
    if encoding.shift_invariant:
        findings = [f"shift invariance of logits max |Δ| {assert_shift_invariant(encoding, params, dims):.1e} ok"]
    else:
        # a learned table has no values beyond its extent
        deviation = shift_deviation(encoding, params, dims, reach=1.0)
        findings = [f"a shift moves the logits by {deviation:.1e}, as declared"]
    if encoding.rotate is not None and encoding.rotate_keys is None:
        findings.append(f"norms of queries and keys max |Δ| {assert_norm_preserved(encoding, params, dims):.1e} ok")
    if encoding.bias is not None:
        findings.append(f"bias by tiles max |Δ| {assert_tile_consistent(encoding, params, dims):.1e} ok")
    return "laws: " + " · ".join(findings)


def mesh_memory(mesh: Mesh) -> int:
    """Return the total memory of the devices of a mesh, in bytes; for CPU devices, the memory of their machines."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        return host_memory() * jax.process_count()
    return mesh.size * (device.memory_stats() or {}).get("bytes_limit", 2**63)


def require_trainable(config: RunConfig, tokens: int, mesh: Mesh) -> None:
    """Check that the parameters and the residual stream of a step fit into memory: a lower bound on its need.

    A layer has at least two square matrices, for its queries and its output.

    Raises:
        ValueError: they do not fit.
    """
    has, width = mesh_memory(mesh), config.width
    require_room(2 * FLOAT * config.layers * width**2, has, f"the parameters of width={width}, layers={config.layers}")
    examples = config.batch // config.accumulate
    value = FLOAT if config.dtype == "float32" else 2
    what = f"{examples} examples of {tokens:,} tokens, width={width} (batch / accumulate)"
    require_room(value * examples * tokens * width, has, what)
