"""The command line becomes frozen options, with each dialect's own defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.sim.options import parse, parser


def test_defaults_differ_by_dialect_and_role() -> None:
    decode = parse(["--role", "decode"], {})
    assert (decode.transfer, decode.mixed, decode.kv_tokens, decode.prefix_tokens) == (
        "mooncake", False, 350_000, 0,
    )  # fmt: skip
    prefill = parse(["--dialect", "vllm", "--role", "prefill"], {})
    assert (prefill.transfer, prefill.mixed, prefill.kv_tokens, prefill.prefix_tokens) == (
        "nixl", True, 700_000, None,
    )  # fmt: skip
    assert parse(["--transfer", "mooncake_tcp"], {}).link.name == "tcp"
    assert parse(["--model-path", "m"], {}).served_model_name == "m"


def test_vllm_reads_its_ports_from_the_environment_unless_told_otherwise() -> None:
    env = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600",
        "VLLM_MOONCAKE_BOOTSTRAP_PORT": "8998",
    }  # fmt: skip
    options = parse(["--dialect", "vllm"], env)
    assert (options.side_channel_host, options.side_channel_port) == ("10.0.0.1", 5600)
    assert options.bootstrap_port == 8998
    told = parse(["--dialect", "vllm", "--side-channel-host", "h", "--side-channel-port", "1"], env)
    assert (told.side_channel_host, told.side_channel_port) == ("h", 1)


def test_no_sequence_is_longer_than_the_memory() -> None:
    assert parse(["--kv-tokens", "1000", "--page-size", "64"], {}).max_model_len == 960


def test_both_spellings_of_a_flag_are_one() -> None:
    assert parse(["--block-size", "16"], {}).page_size == parse(["--page-size", "16"], {}).page_size == 16
    assert parse(["--enable-prompt-tokens-details"], {}).cache_report
    assert parse(["--enable-cache-report"], {}).cache_report


@pytest.mark.parametrize(
    "argv",
    [
        ["--transfer", "nixl"],
        ["--dialect", "vllm", "--transfer", "mooncake_tcp"],
        ["--page-size", "0"],
        ["--kv-tokens", "10"],
        ["--speed", "-1"],
        ["--load-delay-s", "-1"],
        ["--spee", "2"],
    ],
)
def test_what_does_not_fit_together_is_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(argv, {})
    assert caught.value.code == 2


def test_a_time_out_is_read_from_the_environment_given() -> None:
    options = parse([], {"X_S": "12", "Y_S": "soon"})
    assert options.env_s("X_S", 1.0) == 12.0
    assert options.env_s("Z_S", 1.0) == 1.0
    with pytest.raises(ValueError, match="Y_S"):
        options.env_s("Y_S", 1.0)


def test_every_flag_has_help_and_is_in_the_doc() -> None:
    text = parser().format_help()
    doc = (Path(__file__).parents[2] / "docs" / "simulated-engine.md").read_text()
    for action in parser()._actions:
        assert action.help, action.option_strings
        assert action.option_strings[0] in text
        for flag in action.option_strings:
            assert flag in ("-h", "--help") or f"`{flag}`" in doc


def test_what_it_is_to_say_of_itself() -> None:
    assert parse(["--tells", '{"route": {"page_size": 1}}']).tells == {"route": {"page_size": 1}}
    assert parse([]).tells == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"route": 1}', '{"nowhere": {}}'])
def test_what_it_cannot_say_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--tells", text])
    assert "--tells" in capsys.readouterr().err
