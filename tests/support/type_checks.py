"""The runtime type checks of the test run: an int may stand for a float, as it may to every static type checker."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
