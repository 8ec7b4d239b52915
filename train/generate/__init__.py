"""Go on with a text, by a language model in a Hugging Face folder or a GGUF file."""
