"""Search LongRoPE's factors, by which the frequencies of RoPE are divided, for a trained run and a longer length."""
