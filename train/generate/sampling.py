"""The settings of sampling: those of the command line, and the model's own in place of what it does not give."""

import warnings

from pejax import interop
from pejax.models import Sampling
from pejax.models.generation.sampling import check_sampling
from train.generate.options import GenerateOptions


def sampling_of(options: GenerateOptions, vocab: int) -> tuple[Sampling, list[str]]:
    """Return the settings, and lines on what of them came with the model.

    Args:
        options: the command line; what it gives counts.
        vocab: number of the model's tokens.

    Raises:
        ValueError: settings out of range, or those of drawn tokens where the most probable ones are taken.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = interop.load_sampling(options.model)
    own = own._replace(top_k=min(own.top_k, vocab))
    said = (
        options.temperature, options.top_k, options.top_p, options.min_p, options.repetition_penalty,
        options.presence_penalty, options.frequency_penalty,
    )  # fmt: skip
    given = {name: value for name, value in zip(Sampling._fields, said, strict=True) if value is not None}
    sampling = own._replace(**given)
    check_sampling(sampling, vocab)
    if sampling.temperature == 0:
        drawn = [f"{name}={given[name]}" for name in ("top_k", "top_p", "min_p") if given.get(name)]
        drawn += [f"samples={options.samples}"] if options.samples > 1 else []
        if drawn:
            raise ValueError(f"{drawn[0]} needs a temperature above 0, got {sampling.temperature}")
    used = [
        f"{name} {value}"
        for name, value, none in zip(own._fields, own, Sampling(), strict=True)
        if value != none and name not in given and (sampling.temperature > 0 or name == "repetition_penalty")
    ]
    lines = [str(warning.message) for warning in caught]
    return sampling, [*lines, *([f"settings of the model: {', '.join(used)}"] if used else [])]
