"""Conversations whose beginning was tokenized before: what of them is asked for, and how both are joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CUTS = 3
"""Places where a conversation is tried to be cut, the last first: a client goes on from its last answer."""

_WORD = "x"

Fields = Mapping[str, Any]


def cuts(fields: Fields) -> Iterator[int]:
    """Numbers of leading messages that were a prompt by themselves, if sent: an answer follows them.

    None where the prompt does not end in the mark that an answer begins with, which is what makes one a
    beginning of the next.
    """
    messages = fields.get("messages")
    if not isinstance(messages, list) or fields.get("add_generation_prompt") is False:
        return
    if fields.get("continue_final_message"):
        return
    left = CUTS
    for at in range(len(messages) - 1, 0, -1):
        if _role(messages[at]) == "assistant" and _role(messages[at - 1]) != "assistant":
            yield at
            left -= 1
            if not left:
                return


def beginning(fields: Fields, cut: int) -> Fields:
    """The prompt that the first `cut` messages were."""
    return {**fields, "messages": fields["messages"][:cut]}


def stand_in(fields: Fields) -> Fields:
    """A short prompt of the same kind, in whose place the tail of a conversation is looked at: a template
    renders what follows alike, whatever is in front."""
    messages = fields["messages"]
    short = [{"role": "user", "content": _WORD}]
    if messages and _role(messages[0]) == "system":
        short.insert(0, {"role": "system", "content": _WORD})
    return {**_without_tools(fields), "messages": short}


def tail(fields: Fields, cut: int) -> Fields:
    """The stand-in, followed by the messages after the cut."""
    short = stand_in(fields)
    return {**short, "messages": [*short["messages"], *fields["messages"][cut:]]}


def join(head: bytes, short: bytes, tailed: bytes) -> bytes | None:
    """The tokens of a conversation by those of its beginning, of the stand-in, and of the stand-in with the
    tail; None where the template does not go on from a prompt as it was."""
    return head + tailed[len(short) :] if tailed.startswith(short) else None


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _without_tools(fields: Fields) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in ("tools", "tool_choice")}
