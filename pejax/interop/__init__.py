"""Models of text and images from Hugging Face folders and GGUF files, and back, without PyTorch or transformers."""

try:
    import flax  # noqa: F401
    import safetensors  # noqa: F401
except ImportError as error:
    raise ImportError(
        'pejax.interop needs Flax and safetensors: pip install "flax>=0.12.8" safetensors gguf tokenizers'
    ) from error

from pejax.interop.architecture import PARTS, Architecture, Part
from pejax.interop.positions import rope_from_config
from pejax.interop.registration import register
from pejax.interop.source import Source, source_from_config
from pejax.interop.tokenizer import Tokenizer, load_tokenizer
from pejax.interop.weights import load, save

__all__ = [
    "PARTS",
    "Architecture",
    "Part",
    "Source",
    "Tokenizer",
    "load",
    "load_tokenizer",
    "register",
    "rope_from_config",
    "save",
    "source_from_config",
]
