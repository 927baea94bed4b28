"""Packing text: what is packed comes back, for every tokenizer, and mistakes are named."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from hetero.data.token_store import TokenStore
from hetero.errors import DataError, UserError
from pipelines.text import pack_text
from pipelines.text_codec import BpeCodec, ByteCodec, CharCodec, TokenizerKind, load_codec
from tests.support.cli import hetero_here

GPT2 = Path(os.environ.get("HETERO_DATA", Path(__file__).parents[4] / "shared" / "data")) / "tokenizers" / "gpt2"
TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler — 天地玄黃 — to suffer\r\nthe end\n" * 30


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write((TEXT[:500] + "no line end").encode())
    return [str(tmp_path / "b.txt.gz"), str(tmp_path / "a.txt")]


@pytest.mark.parametrize(("kind", "vocabulary"), [("byte", None), ("char", None), ("bpe", 320)])
def test_text_comes_back(files: list[str], tmp_path: Path, kind: str, vocabulary: int | None) -> None:
    packed = pack_text(
        files, folder=tmp_path / "t", tokenizer=TokenizerKind(kind), vocabulary=vocabulary, validation=0.2
    )
    stores = [TokenStore(tmp_path / "t" / part) for part in ("train", "validation")]
    assert [len(store) for store in stores] == [packed.train_tokens, packed.validation_tokens]
    codec = load_codec(tmp_path / "t" / "train", kind=kind)
    text = "".join(codec.decode(store.slice(0, len(store)).tolist()) for store in stores)
    assert text.replace("<|endoftext|>", "") == TEXT + TEXT[:500] + "no line end"
    assert stores[0].meta.vocabulary == codec.vocabulary
    assert stores[0].meta.mask == codec.mask


def test_packing_twice_gives_the_same_tokens(files: list[str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        pack_text(files, folder=tmp_path / name, tokenizer=TokenizerKind.BPE, vocabulary=300)
    one, two = (json.loads((tmp_path / name / "train" / "meta.json").read_text()) for name in ("one", "two"))
    assert one == two


def test_rare_characters_share_an_id(tmp_path: Path) -> None:
    codec = CharCodec.of(["aaabbbc"], most=2)
    assert codec.encode("abcz").tolist() == [0, 1, 2, 2]
    assert codec.decode([0, codec.mask, 1]) == "a_b"
    assert codec.word_starts().tolist() == [False, False, True, True]


def test_bytes_decode_what_is_cut(tmp_path: Path) -> None:
    assert ByteCodec().decode([228, 256, 97]) == "\N{REPLACEMENT CHARACTER}_a"


@pytest.mark.skipif(not GPT2.is_dir(), reason=f"{GPT2} is absent; set HETERO_DATA")
def test_gpt2_ids_are_the_published_ones() -> None:
    codec = BpeCodec.gpt2(GPT2)
    assert codec.encode("Hello world").tolist() == [15496, 995]
    assert (codec.end, codec.mask, codec.vocabulary) == (50256, 50257, 50258)
    assert codec.word_starts()[[15496, 995]].tolist() == [False, True]


def test_what_cannot_be_packed_is_named(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing.txt: cannot be read"):
        pack_text([str(tmp_path / "missing.txt")], folder=tmp_path / "t")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 \n")
    with pytest.raises(DataError, match=r"latin.txt: is no UTF-8 text"):
        pack_text([str(tmp_path / "latin.txt")], folder=tmp_path / "t")
    with pytest.raises(UserError, match="--validation: is 1"):
        pack_text(files, folder=tmp_path / "t", validation=1.0)
    with pytest.raises(UserError, match="bpe needs the number of ids, at least 300"):
        pack_text(files, folder=tmp_path / "t", tokenizer=TokenizerKind.BPE)
    with pytest.raises(UserError, match="--tokenizer-files: gpt2 needs the folder"):
        pack_text(files, folder=tmp_path / "t", tokenizer=TokenizerKind.GPT2)
    with pytest.raises(DataError, match=r"encoder.json: there is no such file"):
        pack_text(files, folder=tmp_path / "t", tokenizer=TokenizerKind.GPT2, tokenizer_files=tmp_path)
    with pytest.raises(DataError, match="cannot be read as the tokenizer"):
        load_codec(tmp_path, kind="char")


def test_the_command_says_what_it_packed(files: list[str], tmp_path: Path) -> None:
    done = hetero_here("data", "text", *files, "--folder", str(tmp_path / "t"), "--tokenizer", "char", "--json")
    assert done.code == 0
    assert done.json["train_tokens"] == len(TokenStore(tmp_path / "t" / "train"))
    done = hetero_here("data", "text", *files, "--folder", str(tmp_path / "t"), "--tokenizer", "words")
    assert done.code == 2
    assert "one of byte, char, gpt2, bpe" in done.err


def test_numbers_are_int64(files: list[str], tmp_path: Path) -> None:
    assert ByteCodec().encode("ab").dtype == np.int64
