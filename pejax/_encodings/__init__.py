"""One encoding per file: its pure functions, then the factory that makes the record."""
