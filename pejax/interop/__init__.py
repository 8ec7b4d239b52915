"""Models of text and images from Hugging Face folders and GGUF files, and back, without PyTorch or transformers."""

from pejax._process.versions import require_version, requirement

try:
    import flax
    import safetensors  # noqa: F401
except ImportError as error:
    packages = f"{requirement('flax')} safetensors gguf tokenizers jinja2"
    raise ImportError(f"pejax.interop needs Flax and safetensors: pip install {packages}") from error
else:
    require_version("flax", flax.__version__, by="pejax.interop")

from pejax.interop.architecture import PARTS, Architecture, Part
from pejax.interop.chat import ChatTemplate
from pejax.interop.classifier import Classifier
from pejax.interop.classifier_folder import load_classifier
from pejax.interop.embedder import Embedder, load_embedder
from pejax.interop.generation_settings import load_sampling
from pejax.interop.new_source import source_from_model
from pejax.interop.positions import rope_from_config
from pejax.interop.predictions import Prediction
from pejax.interop.registration import register
from pejax.interop.source import Source, source_from_config
from pejax.interop.tokenizer import Tokenizer, load_tokenizer
from pejax.interop.weights import load, save

__all__ = [
    "PARTS",
    "Architecture",
    "ChatTemplate",
    "Classifier",
    "Embedder",
    "Part",
    "Prediction",
    "Source",
    "Tokenizer",
    "load",
    "load_classifier",
    "load_embedder",
    "load_sampling",
    "load_tokenizer",
    "register",
    "rope_from_config",
    "save",
    "source_from_config",
    "source_from_model",
]
