"""`python -m benchmarks.generation`: its table has medians, and says whether all sides made the same tokens."""

from benchmarks.generation import SIDES, WORDS, table


def test_the_table_has_medians_and_compares_the_tokens():
    row = lambda value, last: {**dict.fromkeys(WORDS, value), "tokens": [1, last]}
    found = {side: [row(3.0, 2), row(1.0, 2), row(1200.0, 2)] for side in SIDES}
    lines = table(found).splitlines()
    assert lines[2] == "| import, CPU s | 3.00 | 3.00 | 3.00 |"
    assert lines[-1] == "The same tokens: yes."
    found[SIDES[2]][1]["tokens"] = [1, 3]
    assert table(found).endswith("The same tokens: no.")
