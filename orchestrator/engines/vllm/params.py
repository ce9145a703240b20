"""The `kv_transfer_params` that a vLLM prefill returns, checked before a decode engine sees them (0.32.0)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeGuard

from orchestrator.core.address import check_host

# A missing id, host or port hangs decode for ever; missing blocks, or fewer than the prompt needs, end its
# process; more of them, or another prompt's, give wrong tokens with status 200 and stay in its cache.
_FLAGS = {"do_remote_prefill": True, "do_remote_decode": False}
_TEXTS = ("remote_engine_id", "remote_request_id", "remote_host")
_SIZES = ("tp_size", "dcp_size", "pp_size")


def fault(params: object, *, block_size: int | None = None, prompt_tokens: int | None = None) -> str | None:
    """What is wrong with a prefill's hand-off parameters; None if decode may have them.

    `block_size` is the prefill's, in tokens, and `prompt_tokens` what it counted; None: not known, and so
    not checked against.
    """
    if not isinstance(params, Mapping):
        return "they are missing" if params is None else "they are not an object"
    for name, wanted in _FLAGS.items():
        if params.get(name) is not wanted:
            return f"{name} is not {str(wanted).lower()}"
    for name in _TEXTS:
        if not isinstance(params.get(name), str) or not params[name]:
            return f"{name} is missing or no text"
    return _address(params) or _layout(params) or _blocks(params, block_size, prompt_tokens)


def _address(params: Mapping[str, Any]) -> str | None:
    port = params.get("remote_port")
    if not _whole(port) or not 1 <= port <= 65535:
        return "remote_port is missing or no port"
    return _unreachable(params["remote_host"])


@lru_cache(maxsize=1024)
def _unreachable(host: str) -> str | None:
    try:
        host = check_host(host)
    except ValueError:
        return "remote_host is no host"
    if host in ("0.0.0.0", "::"):
        return f"remote_host is {host}, which is no address to reach"
    return None


def _layout(params: Mapping[str, Any]) -> str | None:
    if params.get("transfer_mode", "pull") != "pull":
        return "transfer_mode is not pull"
    for name in _SIZES:
        if name in params and not (_whole(params[name]) and params[name] >= 1):
            return f"{name} is no size"
    return None


def _blocks(params: Mapping[str, Any], block_size: int | None, prompt_tokens: int | None) -> str | None:
    tokens = params.get("remote_num_tokens")
    if not _whole(tokens) or tokens < 1:
        return "remote_num_tokens is missing or no count"
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list) or not groups:
        return "remote_block_ids is missing or empty"
    for group in groups:
        if not isinstance(group, list) or not all(_whole(block) and block >= 0 for block in group):
            return "remote_block_ids is not a list of block numbers per KV cache group"
        if len(set(group)) != len(group):
            return "remote_block_ids names a block twice"
    if not any(groups):
        return "remote_block_ids names no block"
    for count in (tokens, prompt_tokens):
        if block_size is None or count is None:
            continue
        needed = -(-count // block_size)
        if not _enough(groups, needed):
            held = ", ".join(str(len(group)) for group in groups)
            return f"{held} blocks for {count} tokens, which take {needed} of {block_size}"
    return None


def _enough(groups: list[list[int]], needed: int) -> bool:
    """One group (full attention) must match; of several, those with a window are cut to it."""
    if len(groups) == 1:
        return len(groups[0]) == needed
    return all(len(group) <= needed for group in groups)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
