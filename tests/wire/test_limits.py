"""Refusals are JSON whatever the message says."""

import json

import pytest

from orchestrator.wire.limits import plain_refusal


@pytest.mark.parametrize("message", ["no such thing", 'a "quoted" word', "a back\\slash"])
def test_a_plain_refusal_is_json(message):
    refusal = plain_refusal(400, message)
    assert json.loads(refusal.body) == {"error": {"message": message, "code": 400}}
    assert refusal.headers == ((b"content-type", b"application/json"),)
