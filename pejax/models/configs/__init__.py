"""The configs of models, from layers to whole models, and the recipes of the usual ones."""
