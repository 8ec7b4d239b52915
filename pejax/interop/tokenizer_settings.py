"""What tokenizer_config.json says beside a tokenizer.json, as transformers reads it: more tokens, and case."""

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pejax.interop.config import read_json
from pejax.interop.gguf_vocabulary import special_ids

PREFIXED = ("LlamaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer")
"""Classes of transformers 5, with or without `Fast` at the end, whose `add_prefix_space` overrules tokenizer.json."""

NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Keys of tokenizer_config.json, and those of a BertNormalizer in tokenizer.json that they overrule."""

PLAIN = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of transformers that take the normalizer as it is."""

BYTES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "Qwen2Tokenizer", "CodeGenTokenizer", "GPTNeoXTokenizer")
"""Classes of transformers, with or without `Fast` at the end, that make their own bytes of texts: `add_prefix_space` of
tokenizer_config.json overrules that of tokenizer.json, and is false where it is absent."""

FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
MORE = ("additional_special_tokens", "extra_special_tokens")


def folder_settings(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, empty where it is absent, with what older files beside it say.

    As in transformers, special_tokens_map.json and added_tokens.json count where there is no `added_tokens_decoder`.

    Raises:
        ValueError: a damaged file.
    """
    content = lambda name: read_json(folder / name) if (folder / name).exists() else {}
    settings = content("tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    settings = _with_map(settings, content("special_tokens_map.json"))
    added = content("added_tokens.json")
    if not all(type(number) is int and 0 <= number < 10**9 for number in added.values()):
        raise ValueError(f"{folder / 'added_tokens.json'} must map tokens to ids, got {str(added)[:80]}")
    if not added:
        return settings
    tokens = content("tokenizer.json").get("added_tokens")  # these count more
    texts = [token.get("content") for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []
    numbered = {text for text in texts if isinstance(text, str)}
    special = named_tokens(settings, str(folder / "tokenizer_config.json"))
    entries = {
        str(number): {"content": token, "special": token in special, "normalized": token not in special}
        for token, number in added.items() if token not in numbered
    }  # fmt: skip
    return {**settings, "added_tokens_decoder": entries}


def _with_map(settings: Mapping[str, Any], special: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with special_tokens_map.json, which overrules them, but for the lists of further tokens."""
    older, newer = MORE
    tokens, further = settings.get(newer) or settings.get(older), special.get(newer)
    result = {**settings, **special}
    if isinstance(tokens, list):
        result |= {older: None, newer: [*tokens, *further] if isinstance(further, list) else tokens}
    return result


def with_settings(content: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a tokenizer.json with the normalizer that the settings describe, and without dropout of merges.

    Args:
        content: content of tokenizer.json.
        settings: content of tokenizer_config.json.
        where: name of tokenizer.json, for the warning.
    """
    result, model, normalizer = {**content}, content.get("model"), content.get("normalizer")
    if isinstance(model, dict) and model.get("dropout"):
        reason = "with it the same text has other ids each time"
        warnings.warn(f"{where}: dropout {model['dropout']} of merges is left out, {reason}", stacklevel=3)
        result["model"] = {**model, "dropout": None}
    takes_settings = settings.get("tokenizer_class") not in PLAIN
    if takes_settings and isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        overruled = {theirs: settings[own] for own, theirs in NORMALIZER.items() if own in settings}
        result["normalizer"] = {**normalizer, **overruled}
    kind = str(settings.get("tokenizer_class")).removesuffix("Fast")
    parts = (normalizer, content.get("pre_tokenizer"))
    if kind in PREFIXED and settings.get("add_prefix_space") is False and any(map(_prepends, parts)):
        reason = "tokenizer.json counts, which puts a space before every text"
        warnings.warn(f"{where}: add_prefix_space false of tokenizer_config.json is not read, {reason}", stacklevel=3)
    if kind in BYTES:
        result["pre_tokenizer"] = _with_prefix(content.get("pre_tokenizer"), bool(settings.get("add_prefix_space")))
    return result


def _prepends(step: Any) -> bool:
    """Whether a normalizer or pre-tokenizer of tokenizer.json puts a space, written as U+2581, before every text."""
    if not isinstance(step, dict):
        return False
    parts = step.get("normalizers") or step.get("pretokenizers")
    if isinstance(parts, list):
        return any(map(_prepends, parts))
    if step.get("type") == "Metaspace":
        return step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never") != "never"
    return step.get("type") == "Prepend" and step.get("prepend") == "\u2581"


def _with_prefix(step: Any, has_prefix: bool) -> Any:
    """Return a pre-tokenizer of tokenizer.json whose bytes begin with a space before the text, or do not."""
    if not isinstance(step, dict):
        return step
    if step.get("type") == "Sequence" and isinstance(step.get("pretokenizers"), list):
        return {**step, "pretokenizers": [_with_prefix(part, has_prefix) for part in step["pretokenizers"]]}
    return {**step, "add_prefix_space": has_prefix} if step.get("type") == "ByteLevel" else step


def add_tokens(library: Any, settings: Mapping[str, Any], where: str) -> None:
    """Add the tokens that only the settings have to a tokenizer of the package `tokenizers`, in their order.

    Raises:
        ValueError: an entry that is no token.
    """
    from tokenizers import AddedToken

    known = {token.content: repr(token) for token in library.get_added_tokens_decoder().values()}
    more = []
    for text, flags, is_numbered in _tokens(settings, where):
        token = AddedToken(text, **flags)
        # A numbered token overrules the flags of the one in tokenizer.json.
        if text and (text not in known or (is_numbered and known[text] != repr(token))):
            known[text] = repr(token)
            more.append(token)
    library.add_tokens(more)  # together: each call looks at all tokens


def named_tokens(settings: Mapping[str, Any], where: str) -> set[str]:
    """Return the texts of the special tokens that tokenizer_config.json has a name for, and of its further ones.

    Raises:
        ValueError: an entry that is no token.
    """
    return {text for text, _, is_numbered in _tokens(settings, where) if not is_numbered}


def _tokens(settings: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, bool], bool]]:
    """Yield the text, the flags and whether it is numbered of every token: numbered, named, further ones."""
    numbered = settings.get("added_tokens_decoder") or {}
    if not isinstance(numbered, dict) or not all(re.fullmatch("[0-9]{1,9}", str(key)) for key in numbered):
        raise ValueError(f"{where}: added_tokens_decoder must map ids to tokens, got {str(numbered)[:80]}")
    special: list[Any] = [settings.get(name) for name in NAMED]
    for name in MORE:
        entries = settings.get(name) or []
        special += (
            entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else [entries]
        )
    tokens = [(numbered[key], False) for key in sorted(numbered, key=int)] + [(token, True) for token in special]
    for token, is_special in tokens:
        if token is None:
            continue
        fields = token if isinstance(token, dict) else {"content": token}
        text = fields.get("content")
        if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"{where}: a token must be a text or an object with `content`, got {str(token)[:80]!a}")
        flags = {flag: bool(fields[flag]) for flag in FLAGS if flag in fields}
        yield text, {**flags, "special": is_special or flags.get("special", False)}, not is_special


def settings_of_gguf(path: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer_config.json for the metadata of a GGUF file.

    Raises:
        ValueError: the id of a special token that is no token.
    """
    names = {
        "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "cls_token": "cls",
        "sep_token": "seperator", "mask_token": "mask",  # as the keys are spelled
    }  # fmt: skip
    ids = special_ids(path, keys)
    numbers = {token: ids.get(f"{name}_token_id") for token, name in names.items()}
    tokens = keys.get("tokenizer.ggml.tokens", [])
    special = {token: tokens[number] for token, number in numbers.items() if number is not None}
    template = keys.get("tokenizer.chat_template")
    return {"tokenizer_class": "PreTrainedTokenizerFast", **special} | ({"chat_template": template} if template else {})
