"""The operations that docs/encodings.md allows in hooks are those of the kernels."""

import re
from pathlib import Path

from pejax._attention.kernels.elementwise import CHEAP, COSTLY
from pejax._attention.kernels.programs import ELEMENTWISE, OF_CHANNELS, SHIFTS

PAGE = (Path(__file__).parents[2] / "docs" / "encodings.md").read_text()


def names_of(row: str) -> list[str]:
    """Return the names in a row of the table of operations."""
    (cell,) = re.findall(rf"^\| {row} \| (.*) \|$", PAGE, re.MULTILINE)
    return re.findall(r"`(\w+)`", cell)


def test_the_table_has_the_operations_of_the_kernels():
    assert names_of("on each number") == sorted(ELEMENTWISE)
    assert names_of("along channels") == sorted(OF_CHANNELS)


def test_those_of_a_distance_bias_differ_as_the_page_says():
    shifts = {f"shift_{name}" for name in SHIFTS}
    assert CHEAP | COSTLY <= ELEMENTWISE
    assert shifts | {"add_any", "one_minus_square"} == ELEMENTWISE - (CHEAP | COSTLY)  # both of derivatives alone
