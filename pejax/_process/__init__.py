"""The process that pejax runs in: versions of what it needs, its devices, and what it prints."""
