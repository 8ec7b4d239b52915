"""Write the vectors of the lines of a file, by an embedding model."""
