"""Columns of text to tokens, and a job of text and clicks by the command line, from text to served scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetero.data.token_store import TokenStore, read_meta
from hetero.errors import UserError
from hetero.serving.model import ServedModel
from pipelines.job_yaml import dump_yaml
from pipelines.text_codec import TokenizerKind, load_codec
from pipelines.text_columns import add_tokens
from tests.support.cli import hetero_here

WORDS = ["a fine dress", "too tight, sent back", None, "a fine dress", ""]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, texts: list[str | None], **columns: object) -> str:
    table = pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string()), **columns})
    pq.write_table(table, name, row_group_size=2)
    return name


@pytest.mark.parametrize("kind", [TokenizerKind.BYTE, TokenizerKind.CHAR, TokenizerKind.BPE])
def test_every_text_gets_its_tokens_and_all_else_stays(kind: TokenizerKind) -> None:
    files = [write("train.parquet", WORDS), write("test.parquet", ["new words", *WORDS])]
    made = add_tokens(
        files, column="text", folder=Path("out"), kind=kind, vocabulary=300 if kind.value == "bpe" else None
    )
    codec = load_codec(Path(made.tokenizer), kind=kind.value)
    assert made.vocabulary == codec.vocabulary == read_meta(Path(made.tokenizer)).vocabulary
    for file, written in zip(files, made.files, strict=True):
        before, after = pq.read_table(file), pq.read_table(written)
        assert after.drop_columns(["text_tokens"]).equals(before)
        for text, tokens in zip(before["text"].to_pylist(), after["text_tokens"].to_pylist(), strict=True):
            assert tokens == (None if text is None else codec.encode(text).tolist())
    again = add_tokens(["test.parquet"], column="text", folder=Path("again"), tokenizer=Path(made.tokenizer))
    assert pq.read_table(again.files[0]).equals(pq.read_table(made.files[1]))


def test_training_texts_are_packed_once_each_for_pretraining() -> None:
    add_tokens(
        [write("train.parquet", [f"text {n % 20}" for n in range(60)])],
        column="text",
        folder=Path("out"),
        vocabulary=300,
        validation=0.25,
    )
    train, validation = (TokenStore(Path("out/text") / part) for part in ("train", "validation"))
    codec = load_codec(train.folder, kind="bpe")
    texts = [codec.decode(store.slice(0, len(store)).tolist()) for store in (train, validation)]
    assert [text.count("<|endoftext|>") for text in texts] == [15, 5]
    assert texts[0].startswith("text 0<|endoftext|>text 1")
    assert texts[1].startswith("text 15")


@pytest.mark.parametrize(
    ("files", "column", "folder", "said"),
    [
        (["train.parquet"], "txt", "out", "there is no column `txt` \\(it has id, text\\)"),
        (["train.parquet"], "id", "out", "column `id` holds int64; it must be text"),
        (["train.parquet"], "text", ".", "would be written over; give another folder"),
        (["train.parquet", "sub/train.parquet"], "text", "out", "files of one name"),
    ],
)
def test_what_cannot_be_is_refused(files: list[str], column: str, folder: str, said: str) -> None:
    Path("sub").mkdir()
    for file in files:
        write(file, WORDS)
    with pytest.raises(UserError, match=said):
        add_tokens(files, column=column, folder=Path(folder), kind=TokenizerKind.BYTE)


def test_from_texts_to_served_scores_by_the_command_line() -> None:
    """Tokens made, a joint job trained, evaluated, predicted with, exported: the export scores as the run does."""
    random = np.random.default_rng(1)
    good, bad = "a fine piece, love it", "too tight, sent it back"
    label = random.integers(0, 2, 600)
    texts: list[str | None] = [f"{good if y else bad} {n % 7}" for n, y in enumerate(label)]
    write("train.parquet", texts[:500], label=pa.array(label[:500]))
    write("test.parquet", texts[500:], label=pa.array(label[500:]))
    words = ["data", "tokens", "train.parquet", "test.parquet", "--column", "text", "--tokenizer", "char"]
    made = hetero_here(*words, "--folder", "tokens", "--json")
    assert made.code == 0, made.err
    job = {
        "name": "small",
        "data": {"train": "tokens/train.parquet", "test": "tokens/test.parquet"},
        "features": {
            "sparse": [{"name": "id"}],
            "text": [{"name": "words", "column": "text_tokens", "length": 16, "tokenizer": made.json["tokenizer"]}],
        },
        "tables": [{"name": "wide", "dim": 1}, {"name": "deep", "dim": 4}],
        "tower": {
            "name": "joint",
            "args": {"transformer": {"layers": 1, "width": 16, "heads": 2}, "hidden": [8]},
            "parts": [{"name": "text", "optimizer": {"lr": 0.01, "warmup": 2}}],
        },
        "train": {"batch_size": 50, "epochs": 2},
    }
    Path("job.yaml").write_text(dump_yaml(job))
    trained = hetero_here("train", "job.yaml", "--in-process", "--json")
    assert trained.code == 0, trained.err
    assert trained.json["auc"] > 0.9
    evaluated = hetero_here("evaluate", "runs/small", "--json")
    assert evaluated.json["auc"] == trained.json["auc"]
    predicted = hetero_here("predict", "runs/small", "--out", "scores.parquet", "--in-process", "--json")
    assert predicted.code == 0, predicted.err
    embedded = hetero_here(
        "predict", "runs/small", "--out", "vectors.parquet", "--embeddings", "--in-process", "--json"
    )
    assert embedded.json["columns"] == ["label", "prediction", "words_embedding"]
    vectors = pq.read_table("vectors.parquet")
    assert vectors["prediction"].equals(pq.read_table("scores.parquet")["prediction"])
    values = np.stack(vectors["words_embedding"].to_numpy())
    assert values.shape == (100, 16)
    same: dict[str | None, np.ndarray] = {}
    for text, vector in zip(texts[500:], values, strict=True):  # a text has one vector, whatever batch it stands in
        np.testing.assert_allclose(same.setdefault(text, vector), vector, atol=1e-5)
    assert len(same) > 5
    exported = hetero_here("export", "runs/small", "--out", "exported", "--json")
    assert exported.code == 0, exported.err
    served = ServedModel.open("exported").score(pq.read_table("tokens/test.parquet"))
    scores = pq.read_table("scores.parquet")["prediction"].to_numpy()
    np.testing.assert_allclose(served.predictions, scores, rtol=0, atol=1e-6)
