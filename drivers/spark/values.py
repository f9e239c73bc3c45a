"""Values of many messages as columns: numbers, texts and flags each in their own, and which of them are null."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from ...adapters.coordinates import may_lack_fix, placed
from ...adapters.samples import BESIDE
from .packed import Bools, Ints

_NUMBERS: Final = frozenset((float, int))


class Origin(NamedTuple):
    """Whose values these are: messages by index, the sample of each, and its time in ms since 1970.

    ``own``: the sample states that time itself, so what its message says of time and quality is not about it.
    """

    which: Ints
    sample: Ints
    event: Ints
    own: Bools


class Values(NamedTuple):
    """Values by their origin; in which column each belongs, and which are null altogether."""

    which: Ints
    sample: Ints
    event: Ints
    own: Bools
    metric: Any
    number: Any
    text: Any
    flag: Any
    missing: Bools


def metrics_of(keys: tuple[str, ...], samples: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Sequence[Any]]]:
    """The metrics of samples that have the same keys, each with its values; coordinates without a fix are null."""
    if may_lack_fix(keys):
        samples = [placed(sample) for sample in samples]
    for key, column in zip(keys, zip(*map(dict.values, samples), strict=True), strict=True):
        if key not in BESIDE:
            yield key, column


def classified(origin: Origin, metric: Any, values: Sequence[Any]) -> Values:
    """The columns of values as JSON has them."""
    count = len(values)
    kinds = set(map(type, values))
    none = np.zeros(count, np.bool_)
    no_text, no_flag = pa.nulls(count, pa.string()), pa.nulls(count, pa.bool_())
    if kinds <= _NUMBERS:  # by far the most
        number = pa.array(np.fromiter(values, np.float64, count))
        return Values(*origin, metric, number, no_text, no_flag, none)
    number = pa.array([float(value) if type(value) in _NUMBERS else None for value in values], pa.float64())
    flag = (
        pa.array([value if type(value) is bool else None for value in values], pa.bool_()) if bool in kinds else no_flag
    )
    if kinds - _NUMBERS - {bool, type(None)}:
        no_text = pa.array([_text(value) for value in values], pa.string())
    if type(None) in kinds:
        none = np.fromiter((value is None for value in values), np.bool_, count)
    return Values(*origin, metric, number, no_text, flag, none)


def _text(value: Any) -> str | None:
    if type(value) is str:
        return value
    return orjson.dumps(value).decode() if type(value) in (dict, list) else None


def joined(columns: Sequence[Any]) -> Any:
    """Columns of several parts, one behind the other."""
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if isinstance(columns[0], np.ndarray) else pa.concat_arrays(columns)
