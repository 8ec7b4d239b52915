"""Encoder-decoders on tasks of sequences: `python -m train.seq2seq`."""
