"""Pictures of encodings: the public face is `pejax.visualize`. Nothing here imports matplotlib or plotly at its top."""
