"""Names of options: those of a program, read from its source, and the hint for one that it does not have.

Importing a program brings in JAX, which takes seconds; a mistyped option is answered before that.
"""

import ast
import difflib
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRAINERS = ("vit.config", "lm.config", "seq2seq.config", "dit.config", "engine.sequence_config", "engine.config")
"""Modules with the options of all trainers, for programs that pass them on."""

CUTOFF = 0.75
"""Similarity of `difflib` from which on a name is taken for a mistyped one: below, it is another word."""

SYNONYMS = {
    "pe": "encoding positional_encoding position_encoding pos_encoding pos_enc pos_embed position_embedding rope",
    "lr": "learning_rate",
    "weight_decay": "wd",
    "clip": "grad_clip max_grad_norm gradient_clip",
    "accumulate": "gradient_accumulation_steps grad_accum accum",
    "warmup": "warmup_steps warmup_epochs warmup_ratio",
    "batch": "batch_size bs per_device_train_batch_size",
    "epochs": "epoch num_epochs n_epochs num_train_epochs steps max_steps num_steps",
    "steps": "step max_steps num_steps n_steps iterations iters max_iters epochs epoch num_epochs",
    "length": "seq_len seq_length sequence_length max_length max_len context context_length block_size",
    "size": "image_size img_size resolution input_size",
    "patch": "patch_size",
    "width": "hidden_size d_model embed_dim dim n_embd model_dim",
    "layers": "depth num_layers n_layers n_layer",
    "heads": "num_heads n_heads n_head",
    "data": "dataset data_path data_dir train_file",
    "out": "output output_dir save_dir logdir log_dir run_dir",
    "resume": "resume_from resume_from_checkpoint continue",
    "init": "checkpoint ckpt pretrained finetune",
    "extend": "extension extensions rope_scaling",
    "dtype": "precision fp16 bf16 amp mixed_precision",
    "devices": "gpus num_gpus n_gpus ngpu num_devices",
    "seeds": "num_seeds n_seeds",
    "model": "model_path model_name model_name_or_path",
    "max_tokens": "max_new_tokens max_length num_tokens",
    "log_every": "logging_steps log_interval",
    "checkpoint_every": "save_steps save_every checkpoint_interval",
    "eval_sizes": "eval_size test_sizes sizes",
    "eval_lengths": "eval_length lengths",
}
"""Words that other programs have for an option, by its name."""


def require_options(*modules: str) -> None:
    """End with status 2, after a line with a hint, if the command line has an option that a program does not have.

    Args:
        *modules: modules of `train` whose classes and calls of `add_argument` define the options, such as "vit.config".

    Raises:
        SystemExit: status 2.
    """
    known = options_of(*modules)
    for word in sys.argv[1:]:
        option = word.partition("=")[0]
        if option == "--":
            return
        if option.startswith("--") and option not in known:
            sys.stderr.write(f"error: {unknown_option(option, known)}\n")
            raise SystemExit(2)


def unknown_option(option: str, known: Collection[str]) -> str:
    """Return the message for an option that is not known, with the one that it stands for or is close to."""
    word = option.removeprefix("--").replace("-", "_").lower()
    meant = [f"--{name}" for name, words in SYNONYMS.items() if word in words.split() and f"--{name}" in known]
    near = meant or difflib.get_close_matches(f"--{word}", known, n=1, cutoff=CUTOFF)
    printable = "".join(letter if letter.isprintable() else "?" for letter in option)
    return f"unknown option {printable}; " + (f"did you mean {near[0]}?" if near else "see --help")


def options_of(*modules: str) -> set[str]:
    """Return the options of a program, `--help` included, from the source of its modules.

    Args:
        *modules: as in `require_options`.
    """
    found = {"--help"}
    for module in modules:
        source = (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            found.update(_fields(node) if isinstance(node, ast.ClassDef) else _arguments(node))
    return found


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the options of the fields of a frozen dataclass; those that are true or false have a negative form, too."""
    for field in node.body if "frozen=True" in "".join(map(ast.unparse, node.decorator_list)) else ():
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        kind, value = ast.unparse(field.annotation), "" if field.value is None else ast.unparse(field.value)
        if kind.startswith("ClassVar") or "'cmd': False" in value:
            continue
        yield f"--{field.target.id}"
        yield from re.findall(r"alias='(--\w+)'", value)
        if kind == "bool":
            yield f"--no{field.target.id}"


def _arguments(node: ast.AST) -> Iterator[str]:
    """Yield the options that a call of `add_argument` names."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        names = (one.value for one in node.args if isinstance(one, ast.Constant))
        yield from (name for name in names if isinstance(name, str) and name.startswith("--"))
