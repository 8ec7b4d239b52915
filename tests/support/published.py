"""Published config files, and what is said of each: accepted as which model, or refused for what reason."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data_files" / "configs"
VERDICTS = dict(line.split(": ", 1) for line in (FOLDER / "verdicts.txt").read_text().splitlines())
"""By name of the file: the line of `python -m pejax.interop`, without the names of all architectures."""
ACCEPTED = [file for file, verdict in VERDICTS.items() if verdict.startswith("accepted: ")]
