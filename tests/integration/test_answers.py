"""A prefill/decode pair answers what a unified engine answers, token for token, through every hand-off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asking import CHAT, COMPLETION, GENERATE, WORDS, core, events, limited, streamed, streaming
from deployment import Fleet

pytestmark = pytest.mark.integration

PROMPTS = {
    "short": "hello",
    "one block and a bit": WORDS * 6,
    "unicode": 'naïve café — 漢字かな交じり文 🙂 \\ " \n end',
    "long": WORDS * 300,
}
TOKENS = {"short ids": [1, 256, 257], "long ids": [256 + i * 7 % 150 for i in range(3000)]}


def cases() -> list[Any]:
    """Each path with each form of prompt."""
    found: list[Any] = []
    for name, text in PROMPTS.items():
        chat = {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]}
        found += [pytest.param(CHAT, chat, id=f"chat, {name}")]
        found += [pytest.param(COMPLETION, {"prompt": text}, id=f"completion, {name}")]
        found += [pytest.param(GENERATE, {"text": text}, id=f"generate, {name}")]
    for name, ids in TOKENS.items():
        found += [pytest.param(COMPLETION, {"prompt": ids}, id=f"completion, {name}")]
        found += [pytest.param(GENERATE, {"input_ids": ids}, id=f"generate, {name}")]
    return found


def batches() -> list[Any]:
    """Requests for several answers: samples, texts, token lists, and samples of each of several texts."""
    texts, ids = ["one", f"two {WORDS * 20}", "three"], [[1, 256, 300], [2] * 200, [257]]
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    return [
        pytest.param(CHAT, {**chat, "n": 2}, id="chat, n=2"),
        pytest.param(COMPLETION, {"prompt": "hello", "n": 2}, id="completion, n=2"),
        pytest.param(COMPLETION, {"prompt": [1, 256, 300], "n": 2}, id="completion, n=2 of ids"),
        pytest.param(COMPLETION, {"prompt": texts}, id="completion, texts"),
        pytest.param(COMPLETION, {"prompt": ids}, id="completion, ids"),
        pytest.param(COMPLETION, {"prompt": ["one"]}, id="completion, a batch of one"),
        pytest.param(COMPLETION, {"prompt": texts, "n": 2}, id="completion, n=2 of texts"),
        pytest.param(COMPLETION, {"prompt": ids, "n": 2}, id="completion, n=2 of several ids"),
        pytest.param(GENERATE, {"text": "one", "sampling_params": {"n": 2}}, id="generate, n=2"),
        pytest.param(GENERATE, {"text": texts}, id="generate, texts"),
        pytest.param(GENERATE, {"input_ids": ids}, id="generate, ids"),
        pytest.param(GENERATE, {"text": ["one"]}, id="generate, a batch of one"),
    ]


def skip_path(fleet: Fleet, path: str) -> bool:
    """Whether the engine has no such path: then the router says so, and the engines are not asked."""
    if path != GENERATE or fleet.dialect == "sglang":
        return False
    answer = fleet.client.post(path, json={"text": "hello"})
    assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (404, "path-not-served")
    return True


@pytest.mark.parametrize(("path", "body"), [*cases(), *batches()])
def test_whole_answers_are_equal(fleet: Fleet, path: str, body: dict[str, Any]) -> None:
    if skip_path(fleet, path):
        return
    asked = limited(path, body, 24)
    ours, theirs = (to.post(path, json=asked) for to in (fleet.client, fleet.unified))
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text
    assert core(path, ours.json()) == core(path, theirs.json())


@pytest.mark.parametrize(("path", "body"), [*cases(), *batches()])
def test_streams_are_equal(fleet: Fleet, path: str, body: dict[str, Any]) -> None:
    if skip_path(fleet, path):
        return
    asked = streaming(path, limited(path, body, 24))
    ours, theirs = (events(to.post(path, json=asked)) for to in (fleet.client, fleet.unified))
    assert streamed(path, ours) == streamed(path, theirs)
    if path != GENERATE:
        assert len({one["id"] for one in ours}) == 1


def test_samples_over_several_texts_of_generate_are_refused(fleet: Fleet) -> None:
    """The one combination that SGLang's rooms cannot express."""
    if skip_path(fleet, GENERATE):
        return
    answer = fleet.client.post(GENERATE, json={"text": ["one", "two"], "sampling_params": {"n": 2}})
    assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (400, "unsupported")
    assert "send one request per prompt" in answer.json()["error"]["message"]


def test_one_prompt_changed_by_a_word_is_another_answer(fleet: Fleet) -> None:
    """What makes the equalities above worth something."""
    texts = set()
    for word in ("river", "brook"):
        asked = limited(COMPLETION, {"prompt": f"a {word} does not ask"}, 24)
        texts.add(fleet.client.post(COMPLETION, json=asked).json()["choices"][0]["text"])
    assert len(texts) == 2


def test_all_take_part_and_nothing_is_left(fleet: Fleet) -> None:
    """Concurrent requests of many lengths, spread over all pairs; none gets another's answer."""
    asked = [limited(COMPLETION, {"prompt": f"{turn} {WORDS * turn}"}, 64) for turn in range(32)]
    before = fleet.deployment.metrics()
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda body: fleet.client.post(COMPLETION, json=body).json(), asked))
    for body, answer in zip(asked, answers, strict=True):
        theirs = fleet.unified.post(COMPLETION, json=body).json()
        assert answer["choices"][0]["text"] == theirs["choices"][0]["text"]
    after = fleet.deployment.metrics()
    for name in fleet.deployment.engines():
        series = f'pdctl_legs_total{{endpoint="{name}",leg="{name.partition("-")[0]}",result="ok"}}'
        assert after[series] > before.get(series, 0)
    fleet.deployment.at_rest(well=True)
