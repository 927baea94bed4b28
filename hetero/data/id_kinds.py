"""What `IdKind.AUTO` came to in the data a job was trained on, so that other files give the same keys.

AUTO takes integers as keys and hashes everything else, text files' cells always. A model trained on integers would not
know the rows of a CSV file that holds the very same numbers, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from hetero.data.buffers import is_list
from hetero.data.faults import RowFaults
from hetero.data.ids import scalar_keys
from hetero.data.sources import first_schema
from hetero.errors import DataError
from hetero.records import DataSpec, IdKind, SparseFeature


def settled_features(trained: DataSpec) -> tuple[SparseFeature, ...] | None:
    """The sparse features with INTEGER or STRING in place of AUTO, by the first file of the training data.

    None when that data is not there any more.
    """
    if all(feature.ids is not IdKind.AUTO for feature in trained.sparse):
        return trained.sparse
    try:
        schema = first_schema(trained)
        kinds = {feature.column: schema.field(feature.column).type for feature in trained.sparse}
    except (DataError, KeyError):
        return None
    return tuple(
        replace(feature, ids=_settled(kinds[feature.column])) if feature.ids is IdKind.AUTO else feature
        for feature in trained.sparse
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to take a value as an id: how, in words, and the key it gives."""

    how: str
    key: int


def keys_of_value(text: str, *, feature: SparseFeature) -> tuple[Reading, ...]:
    """The key of a value as a person writes it; both that it may be where the feature's kind of ids is not settled.

    Raises DataError for a value that the feature cannot hold.
    """
    if feature.boundaries is None and feature.ids is IdKind.AUTO:
        hashed = Reading(how="hashed, as text", key=_key(text, replace(feature, ids=IdKind.STRING)))
        try:
            integer = Reading(how="as the integer it is", key=_key(text, replace(feature, ids=IdKind.INTEGER)))
        except DataError:
            return (hashed,)
        return (integer, hashed)
    how = "by its bucket" if feature.boundaries is not None else "as the integer it is"
    return (Reading(how="hashed, as text" if feature.ids is IdKind.STRING else how, key=_key(text, feature)),)


def _key(text: str, feature: SparseFeature) -> int:
    faults = RowFaults(1)
    keys = scalar_keys(pa.array([text]), feature=replace(feature, is_list=False), faults=faults).keys
    if faults.reasons():
        raise DataError(f"feature '{feature.name}': {faults.reasons()[0][1]}")
    if not len(keys):
        raise DataError(f"feature '{feature.name}': a missing value has no key there (missing: skip)")
    return int(keys[0])


def _settled(kind: pa.DataType) -> IdKind:
    for is_nested in (is_list, pa.types.is_dictionary):
        kind = kind.value_type if is_nested(kind) else kind
    return IdKind.INTEGER if pa.types.is_integer(kind) else IdKind.STRING
