"""What to read, and which columns mean what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Format(Enum):
    """How files are laid out. AUTO decides by the file's ending; CRITEO is its raw tab-separated log."""

    AUTO = "auto"
    PARQUET = "parquet"
    CSV = "csv"
    TSV = "tsv"
    LIBSVM = "libsvm"
    CRITEO = "criteo"


class IdKind(Enum):
    """How values become 64-bit keys.

    AUTO: integers are keys as they are, everything else is hashed as its UTF-8 text (text files: always hashed).
    INTEGER: parsed and taken as they are, all of int64 and uint64. STRING: xxHash64 (seed 0) of the UTF-8 text.
    """

    AUTO = "auto"
    INTEGER = "integer"
    STRING = "string"


class Missing(Enum):
    """What a missing value of a scalar sparse column is: a key of its own, or no key (an all-zero embedding)."""

    KEY = "key"
    SKIP = "skip"


class DenseTransform(Enum):
    """NONE: x. LOG: sign(x) * log1p(|x|). STANDARD: (x - mean) / std."""

    NONE = "none"
    LOG = "log"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeature:
    """One float column. `fill` replaces missing values before the transform; NaN in the file counts as malformed."""

    name: str
    column: str
    transform: DenseTransform = DenseTransform.NONE
    fill: float = 0.0
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFeature:
    """One column of ids: scalar, multi-valued or a sequence (lists; in text files split at `separator`).

    max_length: lists longer than this keep their *last* values (the newest of a history); None keeps all.
    boundaries: the column is numeric and its key is the number of boundaries <= value (bucket transform).
    """

    name: str
    column: str
    ids: IdKind = IdKind.AUTO
    missing: Missing = Missing.KEY
    is_list: bool = False
    max_length: int | None = None
    separator: str = "|"
    boundaries: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFeature:
    """A column of token ids, a list a row (in text files split at `separator`): the text as a transformer reads it.

    length: tokens kept, the first of a longer text. vocabulary: ids are below it. mask: the id shown for a hidden
    token; None when the tokenizer has none.
    """

    name: str
    column: str
    length: int
    vocabulary: int
    mask: int | None = None
    separator: str = " "


NO_TOKEN = -1
"""Fills a text that is shorter than its feature's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A further label to be learned at once with the first: a column of 0 and 1; rows where it is missing do not count
    for it. weight: of its loss beside the first label's, which has 1."""

    name: str
    column: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """What to read and which columns mean what. Paths: local, globs, folders, or any pyarrow filesystem URI.

    gauc_column: the ids that group rows for GAUC (hashed like AUTO ids). columns: names for text files without a
    header. label: None for data to be scored whose labels nobody asks for; the rows' labels are NaN then. keep: further
    columns to be read as they are, for `hetero.data.kept`. max_malformed_fraction: above it the job fails; malformed
    rows are always counted and written aside. text_block_bytes: size of a split of an uncompressed text file. texts:
    what a transformer reads; tasks: labels learned beside `label`.
    """

    paths: tuple[str, ...]
    dense: tuple[DenseFeature, ...]
    sparse: tuple[SparseFeature, ...]
    label: str | None
    format: Format = Format.AUTO
    weight: str | None = None
    gauc_column: str | None = None
    columns: tuple[str, ...] | None = None
    keep: tuple[str, ...] = ()
    max_malformed_fraction: float = 0.0
    text_block_bytes: int = 16 << 20
    shuffle: bool = False
    seed: int = 0
    texts: tuple[TextFeature, ...] = ()
    tasks: tuple[TaskSpec, ...] = ()
