# %% [markdown]
# # How does attention run on several devices, and does it give the same?
#
# A long sequence does not fit on one device, so its tokens are split over several. Then each query needs keys that lie
# elsewhere, and each position must still be the one in the whole sequence. This notebook splits the batch, the heads and
# the tokens over eight devices, checks that outputs and gradients are those of one device, and shows what is sent. Then
# it trains a small decoder on one device and on eight. It runs unchanged on a TPU with eight chips. Elsewhere it makes
# eight virtual devices of the CPU.

# %% [markdown]
# ## Eight devices
#
# The number of virtual devices must be set before JAX starts. It has no effect on GPUs and TPUs. Virtual devices share
# the threads of XLA, and with too few of them one device can wait for another forever. Two threads per device are
# enough ([Known traps](../docs/known-traps.md)).

# %%
import os

os.environ.setdefault("PJRT_NPROC", "16")

import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pejax
from pejax.models import Decoder, Execution, decoder, partition_specs

DEVICES = 8
FAST = "PEJAX_FAST" in os.environ  # fewer steps, to test the notebook

jax.config.update("jax_num_cpu_devices", DEVICES)
devices = jax.devices() if len(jax.devices()) >= DEVICES else jax.devices("cpu")
jax.config.update("jax_default_device", devices[0])
print(f"{DEVICES} of {len(devices)} devices: {devices[0].device_kind}")


def mesh_of(**sizes):
    """Return a mesh with these axes, for example mesh_of(data=2, heads=4)."""
    chosen = devices[: math.prod(sizes.values())]
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=chosen)


# %% [markdown]
# A mesh arranges the devices on named axes. A `PartitionSpec` says which axis of the mesh splits which axis of an array.
# Here are the ids of a batch of texts, split over two groups of devices by example (rows), and over four by token
# (columns). Each box names the device that holds it: 4 texts, 4 tokens of each.

# %%
mesh = mesh_of(data=2, sequence=4)
ids = jax.device_put(jnp.zeros((8, 16), int), NamedSharding(mesh, PartitionSpec("data", "sequence")))
jax.debug.visualize_array_sharding(ids, use_color=False)

# %% [markdown]
# ## Attention on a mesh
#
# `attend` takes a `Sharding`, which says which axes of the mesh split the batch, the heads and the tokens. Nothing else
# changes: not the encoding, not its parameters, not the positions.

# %%
BATCH, TOKENS, HEADS, HEAD_DIM = 8, 256, 8, 16
dims = pejax.Dims(heads=HEADS, head_dim=HEAD_DIM, causal=True)
q, k, v, target = jax.random.normal(jax.random.key(0), (4, BATCH, TOKENS, HEADS, HEAD_DIM))


def splitting(mesh, **options):
    """Return how attention is split over the axes that a mesh has."""
    axes = {name: name for name in ("heads", "sequence") if name in mesh.shape}
    return pejax.Sharding(mesh, ("data",) if "data" in mesh.shape else (), **axes, **options)


def outputs_and_gradients(encoding, params, **where):
    """Return the output of attention, and gradients by q, k, v and the parameters of the encoding."""

    @jax.jit
    def run(params, q, k, v):
        def loss(params, q, k, v):
            out = pejax.attend(encoding, q, k, v, params=params, **where)
            return jnp.vdot(out, target), out

        return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(params, q, k, v)

    gradients, out = jax.block_until_ready(run(params, q, k, v))
    return out, gradients


def largest_difference(some, others):
    """Return the largest difference, relative to the largest value of each array."""
    difference = lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())
    return max(jax.tree.leaves(jax.tree.map(difference, some, others)))


MESHES = [{"data": 8}, {"heads": 8}, {"sequence": 8}, {"data": 2, "heads": 2, "sequence": 2}]
NAMES = ("alibi",) if FAST else ("rope", "alibi", "t5")
print(f"{'encoding':10} {'mesh':28} output    gradients")
for name in NAMES:
    encoding = pejax.make_encoding(name, dims)
    params = pejax.init_params(encoding, jax.random.key(1))
    out, gradients = outputs_and_gradients(encoding, params)
    for sizes in MESHES[3:] if FAST else MESHES:
        split_out, split_gradients = outputs_and_gradients(encoding, params, sharding=splitting(mesh_of(**sizes)))
        differences = largest_difference(split_out, out), largest_difference(split_gradients, gradients)
        shown = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        print(f"{name:10} {shown:28} {differences[0]:.0e}     {differences[1]:.0e}")
        assert max(differences) < 1e-4

# %% [markdown]
# The differences, relative to the largest value, are those of float32 sums in another order.
#
# ## What is sent
#
# With the batch or the heads split, each device has all that its queries need. With the tokens split, keys and values
# must travel. There are two ways, `method="ring"` and `method="gather"`. The compiled program names what it sends.

# %%
KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
SENT = re.compile(rf"= \(?(\w+\[[\d,]*\]).*? ({KINDS})(?:-start)?\(")  # the first array of an instruction, and its kind


def compiled(mesh, length=TOKENS, **options):
    """Return the compiled program of causal attention without an encoding, tokens split where the mesh splits them."""
    encoding = pejax.encodings.none(dims)
    spec = PartitionSpec(*(axis if axis in mesh.shape else None for axis in ("data", "sequence", "heads")))
    shape = jax.ShapeDtypeStruct((BATCH, length, HEADS, HEAD_DIM), q.dtype, sharding=NamedSharding(mesh, spec))
    sharding = splitting(mesh, **options)
    run = jax.jit(lambda q, k, v: pejax.attend(encoding, q, k, v, sharding=sharding))
    return run.lower(shape, shape, shape).compile()


SPLITS = [({"data": 8}, "ring"), ({"heads": 8}, "ring"), ({"sequence": 8}, "ring"), ({"sequence": 8}, "gather")]
for sizes, method in SPLITS[2:3] if FAST else SPLITS:
    sent = Counter(SENT.findall(compiled(mesh_of(**sizes), method=method).as_text()))
    (axis,) = sizes
    print(f"{axis} split{f', {method}' if axis == 'sequence' else ''}:")
    for (array, kind), count in sent.items():
        print(f"    {kind} of {array}: {count}")
    if not sent:
        print("    nothing is sent")

# %% [markdown]
# The ring passes one shard of keys and values (and their positions) to the next device, in a loop of eight steps, and
# attends to one shard in each step. `gather` brings all keys to every device at once. So the memory of a device differs:

# %%
LENGTH = 1024 if FAST else 4096
COUNTS = (8,) if FAST else (2, 4, 8)
memory = {
    method: [compiled(mesh_of(sequence=count), LENGTH, method=method).memory_analysis() for count in COUNTS]
    for method in ("ring", "gather")
}
figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
for (method, found), color, marker in zip(memory.items(), ("#0072B2", "#D55E00"), "os", strict=True):
    mebibytes = [
        (one.temp_size_in_bytes + one.argument_size_in_bytes + one.output_size_in_bytes) / 2**20 for one in found
    ]
    axes.plot(COUNTS, mebibytes, color=color, marker=marker, label=method)
    print(
        f"{method:7}"
        + "".join(f"  {count} devices: {size:6.1f} MiB" for count, size in zip(COUNTS, mebibytes, strict=True))
    )
axes.set_xscale("log", base=2)
axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
axes.set(xlabel="devices that the tokens are split over", ylabel="memory of one device, MiB", ylim=(0, None))
axes.set_title(f"attention to {LENGTH:,} tokens, forward pass")
axes.grid(alpha=0.3)
axes.legend()
plt.show()

# %% [markdown]
# ## Equal work under a causal mask
#
# In each step of the ring a device attends to one shard of keys, and all devices wait for the slowest. Under a causal
# mask, the first device has few keys to see, the last one many. If device i of n holds the tokens i, i + n, i + 2n, ...
# instead of consecutive ones, all have almost the same work. The order is nothing but the positions that are passed along.

# %%
consecutive = np.arange(TOKENS)
striped = consecutive.reshape(-1, DEVICES).T.reshape(-1)  # device 0 holds 0, 8, 16, ...


def pairs_per_step(order):
    """Return how many pairs of a query and a visible key a device has in each step: (step, device)."""
    visible = order[None, :] <= order[:, None]
    blocks = visible.reshape(DEVICES, TOKENS // DEVICES, DEVICES, TOKENS // DEVICES).sum((1, 3))
    return np.stack([blocks[np.arange(DEVICES), np.arange(DEVICES) - step] for step in range(DEVICES)])


work = {"consecutive": pairs_per_step(consecutive), "striped": pairs_per_step(striped)}
figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
most = max(pairs.max() for pairs in work.values())
for axes, (name, pairs) in zip(panels, work.items(), strict=True):
    picture = axes.imshow(pairs, cmap="cividis", vmin=0, vmax=most)
    axes.set(title=name, xlabel="device", xticks=range(DEVICES), yticks=range(DEVICES))
    print(
        f"{name:12} sum of the slowest device of each step: {pairs.max(1).sum():6,} pairs, mean {pairs.sum() / DEVICES:,.0f}"
    )
panels[0].set_ylabel("step of the ring")
figure.colorbar(picture, ax=panels, label="visible pairs of query and key")
plt.show()

# %%
rope = pejax.encodings.rope(dims)
ring = splitting(mesh_of(sequence=DEVICES))
alone = pejax.attend(rope, q, k, v)
where = {"positions": jnp.asarray(striped), "sharding": ring}
arranged = pejax.attend(rope, q[:, striped], k[:, striped], v[:, striped], **where)
restored = arranged[:, np.argsort(striped)]
print(f"striped, against one device: {largest_difference(restored, alone):.0e}")
assert largest_difference(restored, alone) < 1e-4

# %% [markdown]
# ## A whole model
#
# A `Decoder` takes an `Execution`: which axes of the mesh split the batch, the heads and the tokens. Its parameters have
# named axes, and `partition_specs` turns these names into shardings. Here the mesh has three axes. `data` splits the
# batch, and also the channels of the parameters (as in FSDP: a layer is gathered when it is needed). `tensor` splits
# heads, MLPs and the vocabulary, and `sequence` the tokens.

# %%
RULES = {"embed": "data", "heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
config = decoder(vocab=64, length=64, width=64, layers=2, heads=4, pe="alibi")
is_spec = lambda leaf: isinstance(leaf, PartitionSpec)


def initial(mesh):
    """Return the model without its parameters, and the parameters on the mesh, where each device draws its own share."""
    draw = lambda: nnx.state(Decoder(config, rngs=nnx.Rngs(0)), nnx.Param)
    specs = partition_specs(jax.eval_shape(draw), RULES)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)
    definition = nnx.graphdef(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    return definition, jax.jit(draw, out_shardings=shardings)()


def on_first(params):
    """Return the bytes of the parameters on the first device."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params))


MESH = {"data": 2, "tensor": 2, "sequence": 2}
one, eight = mesh_of(data=1, tensor=1, sequence=1), mesh_of(**MESH)
for mesh in (one, eight):
    definition, params = initial(mesh)
    print(f"devices: {mesh.size}, {on_first(params) / 2**10:.0f} KiB of parameters on the first one")
print("kernel of the head, width by vocabulary:")
jax.debug.visualize_array_sharding(params.head.kernel[...], use_color=False)

# %% [markdown]
# Now train both. Each text counts up from a random number, in steps of 1, 2 or 3, so the second token tells all others.

# %%
STEPS = 10 if FAST else 60
rng = np.random.default_rng(0)
starts, strides = rng.integers(0, config.vocab, (STEPS, BATCH, 1)), rng.integers(1, 4, (STEPS, BATCH, 1))
texts = ((starts + strides * np.arange(config.length + 1)) % config.vocab).astype(np.int32)
optimizer = optax.adam(3e-3)


def train(mesh):
    """Return the loss of every step, and the compiled step."""
    execution = Execution(mesh, batch=("data",), heads="tensor", sequence="sequence")
    definition, params = initial(mesh)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, ids):
        def mean_loss(params):
            logits = nnx.merge(definition, params)(ids[:, :-1], execution=execution)
            return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

        loss, gradients = jax.value_and_grad(mean_loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    program = step.lower(params, state, jnp.asarray(texts[0])).compile()
    losses = []
    for ids in texts:
        params, state, loss = program(params, state, jnp.asarray(ids))
        losses.append(float(loss))  # waits for the devices: on a CPU, no loop may run far ahead of them
    return np.asarray(losses), program


losses_on_one, _ = train(one)
losses_on_eight, program = train(eight)

# %%
figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
axes.plot(losses_on_one, color="#56B4E9", linewidth=4, label="1 device")
axes.plot(losses_on_eight, color="#D55E00", linestyle="--", linewidth=1.5, label="8 devices")
axes.set(xlabel="step", ylabel="loss, nats per token", ylim=(0, None))
axes.grid(alpha=0.3)
axes.legend()
plt.show()
print(f"loss {losses_on_one[0]:.3f} at first, {losses_on_one[-1]:.3f} at last")
print(
    f"one and eight devices differ by at most {np.abs(losses_on_eight - losses_on_one).max():.0e} nats in {STEPS} steps"
)
assert np.abs(losses_on_eight - losses_on_one)[:10].max() < 1e-3

# %% [markdown]
# What one training step sends, by kind: parameters are gathered where they are needed, keys and values go around the
# ring, and gradients are summed.

# %%
kinds = Counter(kind for _, kind in SENT.findall(program.as_text()))
for kind, count in kinds.most_common():
    print(f"{kind:20} {count:3} instructions of the program")

# %% [markdown]
# ## What this does not show
#
# - Speed. Eight virtual devices on a few cores are slower than one. What is gained on real chips depends on their network.
#   `python -m train.plan` of the repository compiles a training step for a TPU slice that you need not have, and tells
#   its memory, its traffic and lower bounds of its time.
# - Several hosts. The same program runs on every host, and the mesh spans all of them:
#   [docs/many-devices.md](../docs/many-devices.md).
