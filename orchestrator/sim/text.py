"""Deterministic text: a tokenizer, the state that stands for KV, and greedy tokens that depend on it."""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import orjson

PRIME = (1 << 63) - 4569
"""The largest safe prime below 2**63. A token sequence read as digits in base 2**32 modulo it is the
state: changing any one token changes it for certain, since neither a power of two nor a token is 0."""

VOCABULARY = 151_936
EOS = 2
_BOS_WORD = 256
_EOS_ONE_IN = 192
_MASK = (1 << 64) - 1

_WORD_LIST = """
the of and a to in is you that it he was for on are as with his they I at be this have from or one had by
word but not what all were we when your can said there use an each which she do how their if will up other
about out many then them these so some her would make like him into time has look two more write go see
number no way could people my than first water been call who oil its now find long down day did get come
made may part over new sound take only little work know place year live me back give most very after thing
our just name good sentence man think say great where help through much before line right too mean old any
same tell boy follow came want show also around form three small set put end does another well large must
big even such because turn here why ask went men read need land different home us move try kind hand
picture again change off play spell air away animal house point page letter mother answer found study still
learn should world high every near add food between own below country plant last school father keep tree
never start city earth eye light thought head under story saw left few while along might close seem next
hard open example begin life always those both paper together got group often run café naïve
"""

PIECES: tuple[str, ...] = tuple(
    [" " + w for w in _WORD_LIST.split() if len(w) <= 8]
    + [".", ",", ";", ":", "!", "?", "\n", '"', "\\", "—", "…"]
)
"""What the simulated model can say; every piece is one token again when it is tokenized."""

_SPECIAL = {"<|im_start|>": 1, "<|im_end|>": EOS, "<|image|>": 3}
_SPLIT = re.compile(r"<\|\w+\|>| ?[^\W\d_]{1,8}| ?\d{1,3}|\s|[^\w\s]|_")


class _Table(dict[str, int]):
    """Piece to token id; an unknown piece gets a stable id by CRC-32 and is remembered for decoding."""

    def __init__(self) -> None:
        super().__init__(_SPECIAL)
        self.update((piece, _BOS_WORD + i) for i, piece in enumerate(PIECES))
        self.pieces = {token: piece for piece, token in self.items()}
        self.first_hashed = _BOS_WORD + len(PIECES)

    def __missing__(self, piece: str) -> int:
        token = self.first_hashed + zlib.crc32(piece.encode()) % (VOCABULARY - self.first_hashed)
        if len(self.pieces) < 200_000:
            self[piece] = token
            self.pieces.setdefault(token, piece)
        return token


_TABLE = _Table()
_ESCAPED = {token: orjson.dumps(piece)[1:-1] for token, piece in _TABLE.pieces.items()} | {EOS: b""}


def encode(text: str) -> list[int]:
    """Token ids of `text`; equal in every process."""
    table = _TABLE
    return [table[piece] for piece in _SPLIT.findall(text)]


def decode(tokens: Sequence[int]) -> str:
    """The text of token ids; an id that neither the model can say nor this process has read is U+FFFD."""
    pieces = _TABLE.pieces
    return "".join(pieces.get(token, "\N{REPLACEMENT CHARACTER}") for token in tokens)


def piece(token: int) -> str:
    """What a token adds to the output; nothing for the end of sequence."""
    return "" if token == EOS else _TABLE.pieces.get(token, "\N{REPLACEMENT CHARACTER}")


def escaped(token: int) -> bytes:
    """`piece` as the inside of a JSON string."""
    return _ESCAPED.get(token) or orjson.dumps(piece(token))[1:-1]


def chat_prompt(messages: Sequence[Any], *, continues: bool = False) -> str:
    """A ChatML prompt from OpenAI messages. Raises ValueError for what is not a message.

    `continues`: the last message is the beginning of the answer.
    """
    parts = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("each message needs a role")
        parts.append(f"<|im_start|>{message['role']}\n{_content(message.get('content'))}<|im_end|>\n")
    if continues:
        return "".join(parts).removesuffix("<|im_end|>\n")
    return "".join(parts) + "<|im_start|>assistant\n"


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("message content is a string or a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, dict):
            raise ValueError("each content part is an object")
        # An image enters the prompt as a tag of what it holds, so that another image is another prompt.
        tag = "" if part.get("type") == "text" else f"<|image|>{zlib.crc32(orjson.dumps(part)):x}"
        texts.append(str(part.get("text", "")) if part.get("type") == "text" else tag)
    return "".join(texts)


def fold(state: int, tokens: Sequence[int]) -> int:
    """The state after `tokens` more; `fold(fold(s, a), b) == fold(s, a + b)`."""
    return ((state << (32 * len(tokens))) | int.from_bytes(_digits(tokens), "big")) % PRIME


def block_states(tokens: Sequence[int], block: int, state: int = 1) -> list[int]:
    """The state at the end of each full block of `tokens`."""
    digits, width = _digits(tokens), 4 * block
    states = []
    for at in range(0, len(digits) - width + 1, width):
        state = ((state << (8 * width)) | int.from_bytes(digits[at : at + width], "big")) % PRIME
        states.append(state)
    return states


def block_hashes(states: Sequence[int], seed: int) -> tuple[int, ...]:
    """Chained 64-bit block hashes from `block_states`: each depends on its block, those before it, `seed`."""
    return tuple(_mix(state ^ seed) for state in states)


def corrupt(state: int, other: int) -> int:
    """The state of a sequence whose KV is partly another's: deterministic, and neither's own."""
    return _mix(state * 3 + other + 1) % PRIME


def generate(state: int, limit: int, *, ignore_eos: bool = False, least: int = 0) -> tuple[list[int], bool]:
    """Greedy output from a state: up to `limit` tokens, and whether it ended with EOS (which is counted).

    Each token is a function of the state, and becomes part of it: the same text follows whether the
    earlier tokens were prompt or output. `least` forbids EOS among the first that many.
    """
    tokens: list[int] = []
    count = len(PIECES)
    for index in range(limit):
        z = (state * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 32)) * 0xD6E8FEB86659FD93) & _MASK
        if not ignore_eos and index >= least and (z >> 20) % _EOS_ONE_IN == 0:
            tokens.append(EOS)
            return tokens, True
        token = _BOS_WORD + (z >> 40) % count
        tokens.append(token)
        state = ((state << 32) | token) % PRIME
    return tokens, False


def logprob(token: int, position: int) -> float:
    """A plausible log-probability, equal wherever the same token stands at the same position."""
    return -(_mix(token * 65_537 + position) % 3000) / 1000 - 0.05


def _mix(value: int) -> int:
    z = (value * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 31)) * 0xBF58476D1CE4E5B9) & _MASK
    return z ^ (z >> 29)


def _digits(tokens: Sequence[int]) -> bytes:
    """The tokens as big-endian 32-bit digits. Raises OverflowError for an id outside 32 bits."""
    digits = array("I", tokens)
    if sys.byteorder == "little":
        digits.byteswap()
    return digits.tobytes()
