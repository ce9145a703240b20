"""One record of the decision log in words: what was asked, what could have been, what was, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.analysis.records import Record

SHOWN = 8
"""Candidates of a choice that are listed; the rest is counted."""

WHY_RECORDED = {
    "full": "all requests are recorded",
    "sample": "it fell into the sample",
    "quiet": "there were few requests",
    "slo-missed": "its promise was broken",
    "refused": "it was refused",
    "failed": "it failed",
    "broken": "it broke off",
}


def lines(record: Record) -> Iterator[str]:
    """The whole explanation, line by line."""
    yield from _asked(record)
    yield ""
    if record.get("tries") or record.get("choices") or record.get("route"):
        yield from _choices(record)
        yield ""
    stages = list(_stages(record))
    if stages:
        yield from stages
        yield ""
    yield from _promise(record)
    yield from _ended(record)


def row(record: Record) -> tuple[str, ...]:
    """A record as a row of a list: when, id, path, class, prompt tokens, route, TTFT, whole time, end."""
    end = str(record["end"])
    promise = record.get("promise")
    if promise and promise["verdict"].startswith("missed-"):
        end = f"{end}, {promise['verdict']}"
    elif record.get("reason"):
        end = f"{end}: {record['reason']}"
    return (
        _when(record["arrived_s"]),
        str(record["request_id"]),
        str(record["path"]),
        record.get("slo_class") or "-",
        _count(record.get("prompt_tokens")),
        _route(record.get("route")) or "-",
        _ms(record.get("ttft_s")),
        _ms(record.get("e2e_s")),
        end,
    )


HEAD = ("arrived (UTC)", "request", "path", "class", "prompt", "route", "TTFT", "in all", "end")


def _asked(record: Record) -> Iterator[str]:
    client = record.get("client_request_id")
    yield f"Request {record['request_id']}" + (f" (its client calls it {client})" if client else "")
    what = f"  {record['path']} for {record['model'] or 'an unknown model'}"
    if record.get("stream"):
        what += ", streamed"
    if (record.get("n") or 1) > 1:
        what += f", {record['n']} answers"
    if record.get("tenant"):
        what += f", tenant {record['tenant']}"
    yield f"{what}; arrived {_when(record['arrived_s'])} UTC"
    asked, slo = record.get("clamped_from"), record.get("slo_class")
    if slo or asked:
        clamped = f"; it asked for {asked}, which its tenant may not use" if asked else ""
        yield f"  class {slo or 'none'}{clamped}"
    if "max_tokens" in record:
        yield f"  prompt of {_prompt(record)}; at most {_count(record['max_tokens'])} tokens to generate"
    recorded = record.get("recorded", "")
    yield f"  recorded because {WHY_RECORDED.get(recorded, recorded)}"


def _prompt(record: Record) -> str:
    tokens, guess = record["prompt_tokens"], record["estimated_tokens"]
    text = f"{_count(tokens)} tokens" + (f" (estimated at {_count(guess)})" if guess != tokens else "")
    believed = (record.get("predicted") or {}).get("cached_tokens")
    told = record.get("cached_tokens")
    if told is not None and believed is not None:
        return f"{text}, {_count(told)} of them cached ({_count(believed)} were expected)"
    if told is not None:
        return f"{text}, {_count(told)} of them cached"
    return f"{text}, {_count(believed)} of them expected to be cached" if believed is not None else text


# -- where it could have gone


def _choices(record: Record) -> Iterator[str]:
    for attempt in record.get("tries") or ():
        yield (
            f"Sent to {_route(attempt['route']) or 'nowhere'} first, which failed after "
            f"{_ms(attempt['at_s'])} ({attempt['reason']}); tried again"
        )
    if record.get("route"):
        yield f"Sent to {_route(record['route'])}"
    choices = record.get("choices")
    if not choices:
        yield "  why was not kept: when it was decided, nothing showed that it would be recorded"
    for choice in choices or ():
        yield from _choice(choice)


def _choice(choice: Mapping[str, Any]) -> Iterator[str]:
    scored, seconds = choice["scored"], choice["unit"] == "seconds"
    ranked = sorted(scored, key=lambda one: one["total"], reverse=not seconds)
    what = "predicted cost, the lowest wins" if seconds else "score, the highest wins"
    if not scored:
        what = "nothing scored"
    yield f"  {choice['role']}: {choice['chosen'] or 'none'} ({what})"
    width = max((len(one["endpoint"]) for one in ranked), default=0)
    best = next((one["total"] for one in ranked if one["endpoint"] == choice["chosen"]), None)
    for one in ranked[:SHOWN]:
        mark = ">" if one["endpoint"] == choice["chosen"] else " "
        yield f"    {mark} {one['endpoint']:<{width}}  {_total(one, seconds)}"
    if len(ranked) > SHOWN:
        yield f"      and {len(ranked) - SHOWN} more behind them"
    for name in dict.fromkeys(choice["filtered"].values()):
        out = sorted(e for e, by in choice["filtered"].items() if by == name)
        yield f"      {_few(out)}: kept out by {name}"
    for name in choice["fallbacks"]:
        yield f"      the policy {name} failed and was passed over (see the router's log)"
    yield from _margin(choice, best, seconds)


def _total(one: Mapping[str, Any], seconds: bool) -> str:
    if not seconds:
        parts = [f"{name} {_share(value)}" for name, value in one["parts"].items()]
        return f"{_share(one['total']):>9}" + (f" = {' + '.join(parts)}" if len(parts) > 1 else "")
    late = one["parts"].get("late", 0.0)
    parts = [f"{name} {_ms(value)}" for name, value in one["parts"].items() if name != "late"]
    total = f"{_ms(one['total'] - late):>9}" + (f" = {' + '.join(parts)}" if len(parts) > 1 else "")
    return f"{total} (too late for its promise)" if late else total


def _margin(choice: Mapping[str, Any], best: float | None, seconds: bool) -> Iterator[str]:
    second = next((o["total"] for o in choice["scored"] if o["endpoint"] == choice["runner_up"]), None)
    if second is None or best is None:
        return
    ahead = second - best if seconds else best - second
    show = _ms if seconds else _share
    if abs(ahead) < 5e-4:
        yield f"      as good as {choice['runner_up']}"
    elif ahead > 0:
        yield f"      {show(ahead)} better than {choice['runner_up']}"
    else:
        yield f"      {choice['runner_up']} was {show(-ahead)} better, and was not picked"


# -- what was predicted, and what happened


def _stages(record: Record) -> Iterator[str]:
    stages: Mapping[str, float] = record.get("stages") or {}
    queued, sent = record.get("admitted"), record.get("predicted")
    if not stages and not queued:
        return
    table = [("", "when queued", "when sent", "happened"), *_rows(stages, queued, sent)]
    whole = record.get("ttft_s")
    if whole is not None or queued or sent:
        table.append(("first token after", _of(queued, "ttft_s"), _of(sent, "ttft_s"), _ms(whole)))
        tail = (queued or sent or {}).get("quantile")
        if tail is not None:
            table.append((f"  {tail:.0%} within", _of(queued, "tail_s"), _of(sent, "tail_s"), ""))
    if "decode" in stages:
        gap = (record.get("promise") or {}).get("tpot_s") or _gap(record)
        table.append(("each token more", _of(queued, "itl_s"), _of(sent, "itl_s"), _ms(gap)))
    if record.get("route") is not None or record.get("tries"):
        table.append(("whole answer after", "", "", _ms(record.get("e2e_s"))))
    if not queued and not sent:
        table = [(name, happened) for name, _, _, happened in table]  # type: ignore[misc]
    yield from columns(table)


def _rows(
    stages: Mapping[str, float], queued: Mapping[str, Any] | None, sent: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str, str]]:
    """Each stage: predicted when queued, predicted when sent, happened."""
    if "retry" in stages:
        yield "attempts that failed", "", "", _ms(stages["retry"])
    if "queue" in stages:
        waited = None if sent is None else sent["waited_s"]
        yield "waiting in the router", _of(queued, "wait_s"), _ms(waited), _ms(stages["queue"])
    if "slices" in stages:
        yield "parts of its prompt, before", "", "", _ms(stages["slices"])
    if "connect" in stages:
        yield "reaching the engine", "", "", _ms(stages["connect"])
    if "encode" in stages:
        yield "encoding media", "", "", _ms(stages["encode"])
    elif sent is not None and sent.get("encode_s"):
        # Whoever computes the prompt has it done: it is part of the next row.
        yield "of the next, encoding media", _of(queued, "encode_s"), _of(sent, "encode_s"), ""
    computing = ("encode_s", "prefill_s")
    last = stages.get("first_token", stages.get("answer"))
    end = "first token" if "first_token" in stages else "whole answer"
    if "bind" in stages:
        early, late = _sum(queued, *computing), _sum(sent, "wait_s", *computing)
        yield "prefill", early, late, _ms(stages["prefill"])
        yield "reaching the decode side", "", "", _ms(stages["bind"])
        yield f"transfer and {end}", _of(queued, "handoff_s"), _of(sent, "handoff_s"), _ms(last)
    elif last is not None:
        early = _sum(queued, *computing, "handoff_s")
        late = _sum(sent, "wait_s", *computing, "handoff_s")
        if "prefill" in stages:
            # Its leg answers when the transfer is over.
            yield "prefill and transfer", early, late, _ms(stages["prefill"])
            yield end, "", "", _ms(last)
        else:
            yield f"prefill to {end}", early, late, _ms(last)
    elif queued or sent:
        yield "prefill", _sum(queued, *computing), _sum(sent, *computing), ""
        yield "transfer and first token", _of(queued, "handoff_s"), _of(sent, "handoff_s"), ""


def _gap(record: Record) -> float | None:
    tokens, stages = record.get("output_tokens") or 0, record["stages"]
    return stages["decode"] / (tokens - 1) if tokens > 1 and record.get("n") == 1 else None


# -- how it ended


def _promise(record: Record) -> Iterator[str]:
    promise = record.get("promise")
    if promise is None:
        return
    slo, ttft_s, e2e_s = record.get("slo_class"), record.get("ttft_s"), record.get("e2e_s")
    verdict = promise["verdict"] if promise["verdict"] in ("kept", "unjudged") else "not kept"
    yield f"Promised by class {slo}, to {promise['quantile']:.0%} of its requests: {verdict}"
    bounds = (
        ("first token", promise["ttft_bound_s"], ttft_s),
        ("each token more", promise["tpot_bound_s"], promise["tpot_s"]),
        ("whole answer", promise["e2e_bound_s"], e2e_s),
    )
    served = record["end"] == "completed"
    for name, bound_s, took_s in bounds:
        if bound_s is None:
            continue
        if took_s is None or not served:
            yield f"  {name} within {_ms(bound_s)}: none to be judged"
        elif took_s > bound_s:
            yield f"  {name} within {_ms(bound_s)}: MISSED by {_ms(took_s - bound_s)}"
        else:
            yield f"  {name} within {_ms(bound_s)}: kept, with {_ms(bound_s - took_s)} to spare"


def _ended(record: Record) -> Iterator[str]:
    end, status, reason = record["end"], record["status"], record.get("reason")
    if end == "completed":
        yield f"Completed: {_count(record.get('output_tokens'))} tokens in {_ms(record.get('e2e_s'))}"
        return
    if end == "cancelled":
        yield f"The client left after {_ms(record.get('e2e_s'))}"
        return
    names = {"refused": "Refused", "failed": "Failed", "broken": "Broke off in mid-answer"}
    yield f"{names.get(end, end)} after {_ms(record.get('e2e_s'))}: {status} {reason}"
    if record.get("message"):
        yield f"  {record['message']}"
    if record.get("retry_after_s") is not None:
        yield f"  told to come back in {record['retry_after_s']:.0f} s"


# -- figures


def columns(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows under each other: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *cells in table:
        figures = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield f"{name:<{widths[0]}}{figures}".rstrip()


def _of(told: Mapping[str, Any] | None, field: str) -> str:
    return "" if told is None else _ms(told.get(field, 0.0))


def _sum(told: Mapping[str, Any] | None, *fields: str) -> str:
    return "" if told is None else _ms(sum(told.get(field, 0.0) for field in fields))


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 99.95 else f"{ms:.1f} ms"


def _share(value: float) -> str:
    return f"{value:.3f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _when(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _route(route: Mapping[str, str] | None) -> str:
    return " > ".join(route.values()) if route else ""


def _few(names: Sequence[str]) -> str:
    return (
        ", ".join(names)
        if len(names) <= SHOWN
        else f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"
    )
