"""Tokenizers of language models: from tokenizer.json, or from the metadata of a GGUF file."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from pejax.interop.chat import ChatTemplate, Messages, chat_template
from pejax.interop.config import read_json
from pejax.interop.files import require_model
from pejax.interop.gguf_parts import read_gguf
from pejax.interop.gguf_tokenizer import tokenizer_of
from pejax.interop.other_folders import other_tokenizer
from pejax.interop.source_files import find_gguf
from pejax.interop.tokenizer_settings import add_tokens, folder_settings, settings_of_gguf, with_settings
from pejax.interop.tokenizer_trial import failure_of, library_errors


@dataclass(frozen=True)
class Tokenizer:
    """Converts text to token ids and back.

    Attributes:
        library: the tokenizer of the package `tokenizers`.
        bos: id of the token that begins a text. None = there is none.
        eos: ids of the tokens that end a text.
        chat: what makes one text of a conversation. None = the model has no chat template.
    """

    library: Any
    bos: int | None = None
    eos: tuple[int, ...] = ()
    chat: ChatTemplate | None = None

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.library.get_vocab_size()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text.

        Args:
            text: any text.
            special: whether tokens that the model expects around every text are added, such as `<s>` or `[CLS]`.

        Raises:
            ValueError: a text that the tokenizer cannot encode.
        """
        with library_errors("text must be one that the tokenizer can encode, got"):
            return self.library.encode(text, add_special_tokens=special).ids

    def encode_chat(self, messages: Messages, **options: Any) -> list[int]:
        """Return the ids of a conversation, which end where the model's next turn begins.

        Args:
            messages: the turns: `[{"role": "user", "content": "Hello"}]`.
            **options: those of `ChatTemplate.render`, and what the template reads beside.

        Raises:
            ValueError: a model without a chat template, or as `ChatTemplate.render`.
            TypeError, ImportError: as `ChatTemplate.render`.
        """
        if self.chat is None:
            raise ValueError("encode_chat needs a model with a chat template, got one without")
        return self.encode(self.chat.render(messages, **options), special=False)  # the template writes them

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included; incomplete UTF-8 becomes U+FFFD.

        Raises:
            ValueError: ids that the tokenizer cannot decode.
        """
        with library_errors("ids must be those that the tokenizer can decode, got"):
            return self.library.decode([*map(int, ids)], skip_special_tokens=False)

    def stream(self, ids: Iterable[int], *, stop: str | int | Sequence[str | int] = ()) -> Iterator[str]:
        """Return the text of token ids in pieces as they come; a character waits until all of its bytes are there.

        Args:
            ids: token ids, such as those of `pejax.models.stream`; no more of them are read once the text has ended.
            stop: ids and texts that end the text and are no part of it, such as `(*tokenizer.eos, "###")`. Text that
                may be the beginning of one waits.

        Raises:
            ValueError: an empty text, which would end every text.
        """
        ends = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
        texts = tuple(end for end in ends if isinstance(end, str))
        if "" in texts:
            raise ValueError(f"stop must hold ids and texts of at least one character, got {stop!r}")
        end_ids = {int(end) for end in ends if not isinstance(end, str)}
        return until(self._pieces(takewhile(lambda token: token not in end_ids, map(int, ids))), texts)

    def _pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Return the text of token ids in pieces of whole characters."""
        from tokenizers.decoders import DecodeStream

        stream, pending = DecodeStream(skip_special_tokens=False), []  # tokens of a character that is not whole yet
        for token in ids:
            pending.append(token)
            with library_errors("ids must be those that the tokenizer can decode, got"):
                piece = stream.step(self.library, token)
            if piece is not None:
                pending.clear()
                yield piece
        if pending:
            yield self.decode(pending)


def until(pieces: Iterable[str], ends: Sequence[str]) -> Iterator[str]:
    """Return the pieces of a text before the first of the texts that end it, however these are cut into pieces."""
    held = ""
    for piece in pieces:
        held += piece
        end_starts = [held.find(end) for end in ends if end in held]
        ready = min(end_starts) if end_starts else len(held) - _begun(held, ends)  # characters to yield
        if ready:
            yield held[:ready]
        if end_starts:
            return
        held = held[ready:]
    if held:
        yield held


def _begun(text: str, ends: Sequence[str]) -> int:
    """Return how many characters at the end of a text may begin one of the texts that end it."""
    lengths = (length for end in ends for length in range(1, len(end)) if text.endswith(end[:length]))
    return max(lengths, default=0)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Load the tokenizer of a model.

    Args:
        path: a folder with tokenizer.json; such a file; or a GGUF file, or a folder with one. The token that begins a
            text, and all those that end one, are read from config.json, generation_config.json and
            tokenizer_config.json beside it.

    Raises:
        ValueError: a damaged file, ids of ends that are not integers, or a kind of tokenizer in a GGUF file that is not
            known.
        ImportError: the package `tokenizers` is missing.
    """
    where = Path(path)
    if where.suffix not in (".gguf", ".json") and not os.path.lexists(where):
        require_model(where)
    json_file = where / "tokenizer.json" if where.is_dir() else where
    # In a folder with both, tokenizer.json counts.
    file = find_gguf(where) if where == json_file or not json_file.exists() else None
    if file is not None:
        return _from_gguf(file)
    if where.is_dir() and not os.path.lexists(json_file):
        raise ValueError(f"{where} must hold tokenizer.json, got {other_tokenizer(where)}")
    settings = folder_settings(json_file.parent)
    tokenizer = _made(with_settings(read_json(json_file), settings, str(json_file)), str(json_file))
    add_tokens(tokenizer, settings, str(json_file.parent / "tokenizer_config.json"))
    if settings.get("split_special_tokens"):
        tokenizer.encode_special_tokens = True
    bos, eos = (_special(json_file.parent, name, tokenizer, settings) for name in ("bos", "eos"))
    chat = chat_template(json_file.parent, settings)
    return Tokenizer(tokenizer, bos[-1] if bos else None, tuple(dict.fromkeys(eos)), chat)


def _made(content: Mapping[str, Any], name: str) -> Any:
    """Return the tokenizer of the library, without truncation and padding."""
    from tokenizers import Tokenizer as Library

    message = f"{name} must be a tokenizer of the package tokenizers, got"
    if reason := failure_of(content):
        raise ValueError(f"{message} {reason}")
    with library_errors(message):
        tokenizer = Library.from_str(json.dumps(content))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special(folder: Path, name: str, tokenizer: Any, settings: Mapping[str, Any]) -> list[int]:
    """Return the ids of the tokens that begin ("bos") or end ("eos") a text, from all files beside tokenizer.json.

    Args:
        folder: the folder of the tokenizer.
        name: see above.
        tokenizer: the tokenizer of the library, which knows the ids of tokens.
        settings: the settings of the folder.
    """
    all_ids: list[int] = []
    for file in ("tokenizer_config.json", "config.json", "generation_config.json"):  # the last one counts most
        is_settings = file == "tokenizer_config.json"
        content = settings if is_settings else read_json(folder / file) if (folder / file).exists() else {}
        token_id = content.get(f"{name}_token_id")
        ids = token_id if isinstance(token_id, list) else [] if token_id is None else [token_id]
        if not all(type(token_id) is int for token_id in ids):
            raise ValueError(f"{folder / file}: {name}_token_id must be an id or a list of ids, got {token_id!r}")
        token = content.get(f"{name}_token") if is_settings else None
        text = token.get("content") if isinstance(token, dict) else token
        named_id = tokenizer.token_to_id(text) if isinstance(text, str) else None
        all_ids += [number for number in ids if number >= 0]  # -1 is none, in some files
        all_ids += [] if named_id is None else [named_id]
    return all_ids


def _from_gguf(path: Path) -> Tokenizer:
    """Return the tokenizer that the metadata of a GGUF file describes."""
    keys = read_gguf(path).keys
    content, bos, eos = tokenizer_of(path, keys)
    return Tokenizer(_made(content, str(path)), bos, eos, chat_template(path, settings_of_gguf(path, keys)))
