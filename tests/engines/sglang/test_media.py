"""What may come near an encoder: images that begin as one, and what an operator lets pass unseen."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from orchestrator.core.types import PathKind
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.sglang.media import Allowed, check
from orchestrator.engines.splice import JsonBody
from orchestrator.errors import BadRequest

TAIL = bytes(range(60))
BEGINNINGS = {
    "png": b"\x89PNG\r\n\x1a\n",
    "jpeg": b"\xff\xd8\xff\xe0",
    "gif": b"GIF89a",
    "webp": b"RIFF\x24\x00\x00\x00WEBPVP8 ",
    "bmp": b"BM",
}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


PNG = encoded(BEGINNINGS["png"] + TAIL)
GOOD = f"data:image/png;base64,{PNG}"
LINK = "https://example.org/cat.png"


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": list(parts)}]}


def image(url: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def refusal(fields: dict[str, Any], allow: Allowed = "checked") -> str | None:
    try:
        check(fields, allow)
    except BadRequest as error:
        return error.reason if error.param in fields else f"blames {error.param}"
    return None


@pytest.mark.parametrize("kind", BEGINNINGS)
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_images_pass_in_every_known_form(kind: str, extra: int) -> None:
    text = encoded(BEGINNINGS[kind] + TAIL + b"x" * extra)
    assert refusal(chat({"type": "text", "text": "?"}, image(f"data:image/{kind};base64,{text}"))) is None
    assert refusal({"text": "<image>", "image_data": text}) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data:",
        "data:image/png;base64,",
        "data:image/png;base64,not an image",
        f"data:image/png;base64,{encoded(b'hello, I am a text, and no image at all')}",
        f"data:image/png;base64,{encoded(b'RIFF----WAVEfmt ' + TAIL)}",
        f"data:image/png;base64,{PNG[:-1]}",
        f"data:image/png;base64,{PNG[:40]}!!{PNG[42:-2]}*=",
        f"data:image/png;base64, {PNG}",
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E",
        "data:image/png;base64,ÄÖÜß" * 6,
        "file:///etc/passwd",
        "/etc/passwd",
        "cat.png",
    ],
)
@pytest.mark.parametrize("allow", ["checked", "any"])
def test_what_is_no_image_is_refused_whatever_is_allowed(url: str, allow: Allowed) -> None:
    assert refusal(chat(image(url)), allow) == "bad-image"
    assert refusal({"image_data": [GOOD, url]}, allow) == "bad-image"


@pytest.mark.parametrize(
    "fields",
    [
        chat(image(LINK)),
        chat({"type": "image_url", "image_url": LINK}),
        chat({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}),
        chat({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        {"image_data": LINK},
        {"image_data": [[GOOD], [LINK]]},
        {"image_data": {"format": "precomputed_embedding", "feature": [1.0]}},
        {"audio_data": "AAAA"},
        {"input": [{"text": "a", "image": LINK}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": LINK}}]}
            ]
        },
    ],
)
def test_what_cannot_be_checked_passes_where_the_operator_says_so(fields: dict[str, Any]) -> None:
    assert refusal(fields) == "unchecked-media"
    assert refusal(fields, "any") is None


def test_images_are_found_wherever_an_engine_looks_for_them() -> None:
    bad = "data:image/png;base64,AAAA"
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    for fields in (
        chat(image(GOOD), image(bad)),
        chat({"type": "tool_result", "content": [{"type": "image", "source": source}]}),
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": bad}]}]},
        {"input": [{"text": "a", "image": GOOD}, {"text": "b", "image": bad}]},
    ):
        assert refusal(fields, "any") == "bad-image"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x"},
        {"messages": "no list"},
        {"messages": [{"role": "user", "content": "data:image/png;base64,AAAA"}, 7]},
        chat("text", {"type": "text", "text": LINK}, None),
        {"input": [1, 2, 3]},
        {"messages": [{"role": "assistant", "content": None, "audio": {"id": "a"}}]},
        {"image_data": None},
    ],
)
def test_text_and_nonsense_are_the_engines_to_judge(fields: dict[str, Any]) -> None:
    assert refusal(fields) is None


def test_only_a_deployment_with_encoders_looks_at_images() -> None:
    body = JsonBody(orjson.dumps(chat(image(LINK))))
    SGLang().check(PathKind.CHAT, body, True, {})
    with pytest.raises(BadRequest, match="data URLs"):
        SGLang().check(PathKind.CHAT, body, True, {"media": "checked"})
    SGLang().check(PathKind.CHAT, body, True, {"media": "any"})
