"""Are the columns there, and of types that fit their use? Asked before anything is read, answered in one error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import pyarrow as pa

from hetero.data.buffers import is_list, is_text
from hetero.data.tokens import as_ids
from hetero.errors import DataError
from hetero.records import DataSpec, Format, IdKind, SparseFeature, TextFeature

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
LIBSVM_COLUMNS = ("label", "features")

_SHOWN_COLUMNS = 12


def needed_columns(spec: DataSpec) -> dict[str, str]:
    """Column -> the first thing in the job that wants it, in the order label, weight, gauc, dense, sparse,
    text, tasks, kept."""
    uses: dict[str, str] = {}
    if spec.label is not None:
        uses[spec.label] = "the label"
    if spec.weight is not None:
        uses.setdefault(spec.weight, "the weight")
    if spec.gauc_column is not None:
        uses.setdefault(spec.gauc_column, "the GAUC column")
    for dense in spec.dense:
        uses.setdefault(dense.column, f"dense feature '{dense.name}'")
    for sparse in spec.sparse:
        uses.setdefault(sparse.column, f"sparse feature '{sparse.name}'")
    for text in spec.texts:
        uses.setdefault(text.column, f"text feature '{text.name}'")
    for task in spec.tasks:
        uses.setdefault(task.column, f"the label of task '{task.name}'")
    for column in spec.keep:
        uses.setdefault(column, "the output")
    return uses


def check_columns(names: Sequence[str], *, spec: DataSpec, path: str) -> None:
    """Raises DataError when a needed column is missing (naming the nearest existing ones) or stands twice."""
    problems = []
    for column, use in needed_columns(spec).items():
        count = names.count(column)
        if count == 0:
            problems.append(f"no column '{column}' (wanted by {use}){_nearest(column, names)}")
        elif count > 1:
            problems.append(f"column '{column}' (wanted by {use}) stands {count} times")
    if problems:
        raise DataError(
            f"{path}: {'; '.join(problems)}. The file has {len(names)} columns: {_listed(names)}."
            " Correct the column names in the job, or name the columns of a text file without header in"
            " data.columns"
        )


def check_types(schema: pa.Schema, *, spec: DataSpec, path: str) -> None:
    """Raises DataError when a Parquet column is missing or its type does not fit its use; lists all such columns."""
    check_columns(schema.names, spec=spec, path=path)
    problems = [*_number_problems(schema, spec=spec)]
    if spec.gauc_column is not None:
        problems.extend(_id_problems(schema.field(spec.gauc_column).type, column=spec.gauc_column))
    for feature in spec.sparse:
        problems.extend(_sparse_problems(schema.field(feature.column).type, feature=feature))
    for text in spec.texts:
        problems.extend(_text_problems(schema.field(text.column).type, feature=text))
    if problems:
        raise DataError(
            f"{path}: {'; '.join(problems)}. Use other columns in the job, or cast these where the file is written"
        )


def check_fixed(spec: DataSpec, *, kind: Format, path: str) -> None:
    """Checks the job against the columns that libsvm and Criteo files always have. Raises DataError."""
    names = LIBSVM_COLUMNS if kind is Format.LIBSVM else CRITEO_COLUMNS
    if spec.columns is not None:
        raise DataError(
            f"{path}: data.columns is given, but the columns of {kind.value} files are fixed:"
            f" {_listed(names)}; leave data.columns out"
        )
    check_columns(names, spec=spec, path=path)
    if kind is not Format.LIBSVM:
        return
    numbers = [f"dense feature '{f.name}'" for f in spec.dense if f.column == "features"]
    numbers += [f"sparse feature '{f.name}' (boundaries)" for f in spec.sparse if f.boundaries is not None]
    if numbers or spec.gauc_column == "features" or spec.weight == "features":
        raise DataError(
            f"{path}: column 'features' of libsvm files holds index:value pairs and can only feed sparse features"
            f" without boundaries; taken by {', '.join(numbers) or 'the weight or the GAUC column'}"
        )


def _number_problems(schema: pa.Schema, *, spec: DataSpec) -> Iterable[str]:
    uses = [] if spec.label is None else [(spec.label, "the label")]
    if spec.weight is not None:
        uses.append((spec.weight, "the weight"))
    uses.extend((f.column, f"dense feature '{f.name}'") for f in spec.dense)
    uses.extend((task.column, f"the label of task '{task.name}'") for task in spec.tasks)
    for column, use in uses:
        kind = schema.field(column).type
        if not _is_number(kind):
            yield f"column '{column}' ({use}) must be a number, not {kind}"


def _sparse_problems(kind: pa.DataType, *, feature: SparseFeature) -> Iterable[str]:
    name, column = feature.name, feature.column
    if is_list(kind):
        if not feature.is_list:
            yield f"column '{column}' holds {kind}; set is_list for sparse feature '{name}'"
            return
        kind = kind.value_type
    elif feature.is_list and not _is_textual(kind) and not pa.types.is_null(kind):
        yield f"column '{column}' holds {kind}, but sparse feature '{name}' is a list"
        return
    if feature.boundaries is not None:
        if not (_is_number(kind) or _is_textual(kind)):
            yield f"column '{column}' holds {kind}, but sparse feature '{name}' has boundaries and needs numbers"
    elif feature.ids is IdKind.INTEGER:
        if not (pa.types.is_integer(_decoded(kind)) or _is_textual(kind) or pa.types.is_null(kind)):
            yield (
                f"column '{column}' holds {kind}, but sparse feature '{name}' takes integers and nothing is"
                " narrowed to one"
            )
    else:
        yield from _id_problems(kind, column=column)


def _text_problems(kind: pa.DataType, *, feature: TextFeature) -> Iterable[str]:
    if _is_textual(kind):
        yield (
            f"column '{feature.column}' holds {kind}, but text feature '{feature.name}' takes token ids; make them with"
            " `hetero data tokens`"
        )
        return
    yield from (
        problem.replace("sparse feature", "text feature") for problem in _sparse_problems(kind, feature=as_ids(feature))
    )


def _id_problems(kind: pa.DataType, *, column: str) -> Iterable[str]:
    if pa.types.is_nested(kind):
        yield f"column '{column}' holds {kind}, which cannot be an id"


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_textual(kind: pa.DataType) -> bool:
    return is_text(_decoded(kind))


def _is_number(kind: pa.DataType) -> bool:
    kind = _decoded(kind)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def _nearest(column: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(column, names, n=3, cutoff=0.5)
    return f"; nearest: {', '.join(repr(name) for name in close)}" if close else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_COLUMNS])
    return shown if len(names) <= _SHOWN_COLUMNS else f"{shown} and {len(names) - _SHOWN_COLUMNS} more"
