"""The parts of a layer: linear maps, norms, attention, MLPs and experts; and the ends of a text model."""
