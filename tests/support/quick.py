"""What XLA is told so that programs which run once are compiled fast."""

from importlib.metadata import version

FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
# Later ones do not know the next one, and end the process. None of theirs is as good: without the pass "fusion", a
# program has more kernels and takes 1.7 times as long to compile.
if version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
QUICK = " ".join(FLAGS)

AS_USERS: dict[str, int | bool] = {"xla_backend_optimization_level": 3}
"""Compiler options under which a program is compiled as without these flags."""
if version("jaxlib").startswith("0.10."):
    AS_USERS["xla_cpu_use_fusion_emitters"] = True
