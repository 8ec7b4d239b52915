"""What XLA is told so that programs which run once are compiled fast."""

from importlib.metadata import version

FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):  # later ones do not know it, and end the process
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
QUICK = " ".join(FLAGS)
