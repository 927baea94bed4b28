"""Text to token ids and back: bytes, characters, or byte-pair encoding by the `tokenizers` library."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hetero.errors import DataError, UserError
from hetero.records.arrays import I64

TOKENIZER = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_WORD_MARK = "\u0120"
"""How byte-level BPE writes the space that begins a word."""


class TokenizerKind(Enum):
    """BYTE: the 256 bytes of UTF-8. CHAR: the characters of the data. GPT2: GPT-2's byte-pair encoding, from its files.
    BPE: byte-pair encoding trained on the data."""

    BYTE = "byte"
    CHAR = "char"
    GPT2 = "gpt2"
    BPE = "bpe"


class TextCodec(Protocol):
    """mask: the id that stands for a hidden token. end: the id after a document, None without one."""

    @property
    def kind(self) -> TokenizerKind: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def mask(self) -> int: ...
    @property
    def end(self) -> int | None: ...

    def encode(self, text: str) -> I64:
        """int64 [n]."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; a mask is shown as `_`."""

    def word_starts(self) -> npt.NDArray[np.bool_] | None:
        """bool [vocabulary]: whether a token begins a word; None when tokens do not tell."""

    def save(self, folder: Path) -> None: ...


class ByteCodec:
    """Ids 0 to 255 are the bytes of UTF-8, 256 the mask."""

    kind = TokenizerKind.BYTE
    vocabulary = 257
    mask = 256
    end = None

    def encode(self, text: str) -> I64:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ord("_") if number == self.mask else number for number in ids).decode(errors="replace")

    def word_starts(self) -> None:
        return None

    def save(self, folder: Path) -> None:
        _save(folder, {"kind": self.kind.value})


class CharCodec:
    """The most frequent characters of the data in code-point order, then one id for all others, then the mask."""

    kind = TokenizerKind.CHAR
    end = None

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self._ids = {character: number for number, character in enumerate(characters)}
        self._unknown = len(characters)
        self.mask = len(characters) + 1
        self.vocabulary = len(characters) + 2

    @staticmethod
    def of(texts: Iterable[str], *, most: int | None) -> CharCodec:
        """most: characters kept; None keeps all."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        kept = sorted(counts, key=lambda character: (-counts[character], character))[:most]
        return CharCodec("".join(sorted(kept)))

    def encode(self, text: str) -> I64:
        return np.fromiter((self._ids.get(character, self._unknown) for character in text), np.int64, len(text))

    def decode(self, ids: Sequence[int]) -> str:
        shown = {self._unknown: _UNKNOWN, self.mask: "_"}
        return "".join(shown.get(number) or self._characters[number] for number in ids)

    def word_starts(self) -> npt.NDArray[np.bool_]:
        """What is no letter or digit begins a word, and so does every ideograph."""
        starts = [not character.isalnum() or _ideograph(character) for character in self._characters]
        return np.array([*starts, True, True])

    def save(self, folder: Path) -> None:
        _save(folder, {"kind": self.kind.value, "characters": self._characters})


class BpeCodec:
    """Byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019), by the `tokenizers` library."""

    def __init__(self, tokenizer: Any, kind: TokenizerKind) -> None:
        self.kind = kind
        self._tokenizer = tokenizer
        self.vocabulary: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self.mask: int = tokenizer.token_to_id(MASK)
        self.end: int | None = tokenizer.token_to_id(END_OF_TEXT)

    @staticmethod
    def gpt2(files: Path) -> BpeCodec:
        """From `encoder.json` and `vocab.bpe`. Raises DataError when they are not in the folder."""
        library = _library()
        vocabulary, merges = files / "encoder.json", files / "vocab.bpe"
        for path in (vocabulary, merges):
            if not path.is_file():
                raise DataError(f"{path}: there is no such file; --tokenizer-files is the folder of GPT-2's two files")
        model = library.models.BPE.from_file(str(vocabulary), str(merges))
        return BpeCodec(_byte_level(library, model, added=[END_OF_TEXT, MASK]), TokenizerKind.GPT2)

    @staticmethod
    def trained(texts: Iterable[str], *, vocabulary: int) -> BpeCodec:
        """vocabulary: ids in all, the 256 bytes and 2 of our own among them."""
        library = _library()
        tokenizer = _byte_level(library, library.models.BPE(), added=[])
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[END_OF_TEXT, MASK],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return BpeCodec(tokenizer, TokenizerKind.BPE)

    def encode(self, text: str) -> I64:
        return np.array(self._tokenizer.encode(text).ids, np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return "_".join(
            str(self._tokenizer.decode(part, skip_special_tokens=False)) for part in _split(list(ids), self.mask)
        )

    def word_starts(self) -> npt.NDArray[np.bool_]:
        starts = np.ones(self.vocabulary, bool)
        for token, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            starts[number] = token.startswith(_WORD_MARK) or not token[:1].isalnum()
        return starts

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._tokenizer.save(str(folder / TOKENIZER))


def make_codec(
    texts: Callable[[], Iterable[str]], kind: TokenizerKind, vocabulary: int | None, tokenizer_files: Path | None
) -> TextCodec:
    """A codec, learned from `texts` where its kind learns. Raises UserError for options that do not go together."""
    if kind is TokenizerKind.CHAR:
        return CharCodec.of(texts(), most=vocabulary)
    if kind is TokenizerKind.BPE:
        if vocabulary is None or vocabulary < 300:
            raise UserError(
                f"--vocabulary: bpe needs the number of ids, at least 300 (256 are bytes); got {vocabulary}"
            )
        return BpeCodec.trained(texts(), vocabulary=vocabulary)
    if kind is TokenizerKind.GPT2:
        if tokenizer_files is None:
            raise UserError("--tokenizer-files: gpt2 needs the folder that holds encoder.json and vocab.bpe")
        return BpeCodec.gpt2(tokenizer_files)
    return ByteCodec()


def load_codec(folder: Path, *, kind: str) -> TextCodec:
    """The codec that made a folder's tokens. Raises DataError when its file cannot be read."""
    path = folder / TOKENIZER
    try:
        if kind in (TokenizerKind.GPT2.value, TokenizerKind.BPE.value):
            return BpeCodec(_library().Tokenizer.from_file(str(path)), TokenizerKind(kind))
        record = json.loads(path.read_text(encoding="utf-8"))
        return CharCodec(record["characters"]) if kind == TokenizerKind.CHAR.value else ByteCodec()
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read as the tokenizer of these tokens ({error})") from error


def _byte_level(library: Any, model: Any, *, added: Sequence[str]) -> Any:
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(added))
    return tokenizer


def _split(ids: list[int], mark: int) -> Iterator[list[int]]:
    here: list[int] = []
    for number in ids:
        if number == mark:
            yield here
            here = []
        else:
            here.append(number)
    yield here


def _ideograph(character: str) -> bool:
    return "\u3400" <= character <= "\u9fff" or character >= "\U00020000"


def _save(folder: Path, record: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER).write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            "byte-pair encoding needs the library `tokenizers`: pip install 'hetero[text]'; "
            "or take --tokenizer byte or char"
        ) from error
    return tokenizers
