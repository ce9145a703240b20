"""Images that an encoder would fail on, which ends the SGLang that waits for it: seen on 0.5.23."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from orchestrator.errors import BadRequest

Allowed = Literal["checked", "any"]
"""Which media may pass: images seen to begin as one, or also what the router cannot look into."""

UNCHECKED = "unchecked_media"
"""The option of an encode pool that lets the latter pass."""

_HEAD = 24
"""Characters of base64 whose bytes tell every known kind of image."""

_DATA = ("image_data", "video_data", "audio_data")
"""Fields of /generate."""

_PART_IMAGES = ("image_url", "image")
_PART_OTHERS = ("video_url", "audio_url", "input_audio", "video", "audio", "file")


def allowed(options: Mapping[str, Any]) -> Allowed:
    """What the options of an encode pool let pass."""
    return "any" if options.get(UNCHECKED) is True else "checked"


def check(fields: Mapping[str, Any], allow: Allowed) -> None:
    """Raise BadRequest for an image that does not begin as one, and for what cannot be checked.

    Only the beginning and the end of each are looked at: a picture that is broken further on passes.
    """
    for name in _DATA:
        if (given := fields.get(name)) is not None:
            _medium(name, given, allow, image=name == "image_data")
    for name in ("messages", "input"):
        given = fields.get(name)
        if isinstance(given, list) and given and isinstance(given[0], dict):
            for entry in given:
                _part(name, entry, allow)


def _part(param: str, part: object, allow: Allowed) -> None:
    """A message, or a part of one, and the parts within."""
    if not isinstance(part, dict):
        return
    inner = part.get("content")
    for one in inner if isinstance(inner, list) else ():
        _part(param, one, allow)
    if "role" in part:
        return
    for medium, image in _media(part):
        if medium is not None:
            _medium(param, medium, allow, image=image)


def _media(part: Mapping[str, Any]) -> Iterator[tuple[object, bool]]:
    """What a part holds beside text, and whether it is an image."""
    for name in _PART_IMAGES:
        yield part.get(name), True
    for name in _PART_OTHERS:
        yield part.get(name), False
    source = part.get("source")  # as in /v1/messages
    if isinstance(source, dict):
        yield source.get("data", source.get("url")), True


def _medium(param: str, given: object, allow: Allowed, *, image: bool) -> None:
    if isinstance(given, list):
        for one in given:
            _medium(param, one, allow, image=image)
        return
    if isinstance(given, dict):
        given = given.get("url", given)
    if not image or not isinstance(given, str) or given.startswith(("http://", "https://")):
        if allow != "any":
            raise BadRequest(
                f"`{param}` holds a medium that cannot be checked here, and one that cannot be read would "
                "end the engine; send images, as data URLs",
                reason="unchecked-media",
                param=param,
            )
    elif not _begins_as_image(given.partition(",")[2] if given.startswith("data:") else given):
        raise BadRequest(
            f"`{param}` holds an image that is not the base64 of a PNG, JPEG, GIF, WEBP or BMP",
            reason="bad-image",
            param=param,
        )


def _begins_as_image(encoded: str) -> bool:
    """Whether base64, which the engine reads strictly, is well-formed at both ends and begins as an image."""
    if len(encoded) % 4 or len(encoded) < _HEAD:
        return False
    try:
        head = a2b_base64(encoded[:_HEAD], strict_mode=True)
        a2b_base64(encoded[-4:], strict_mode=True)
    except ValueError:
        return False
    if head.startswith(b"RIFF"):
        return head[8:12] == b"WEBP"
    return head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM"))
