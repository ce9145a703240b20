"""The scalar types of a topology as YAML writes them: durations, sizes, addresses, secrets, flags, env."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from orchestrator.core.address import check_host, check_port, join_host_port, split_host_port, split_http_url
from orchestrator.core.duration import DURATION_PATTERN as DURATION_PATTERN
from orchestrator.core.duration import parse_duration as parse_duration

SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?(B|[KMGT]i?B)$"
NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
REFERENCE = re.compile(r"\$\{env:([^}]*)\}")
"""An environment variable of whoever runs pdctl, allowed in secrets and in `env` alone."""

_LOOKALIKE = re.compile(r"\$\{(?:env\.|ENV[.:])?([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Z_][A-Z0-9_]*)")
"""How a shell or another launcher writes a variable: as a key it would be taken literally."""

_UNIT_BYTES = {"B": 1} | {
    f"{prefix}{i}B": (1024 if i else 1000) ** power
    for power, prefix in enumerate("KMGT", start=1)
    for i in ("", "i")
}


@dataclass(slots=True)
class Scope:
    """What validation needs from outside, and what it finds on the way (pydantic's context).

    `secrets` collects every value that must never be printed. With `placeholders`, a variable that is not set
    is filled with one, for whoever tells of it elsewhere and wants all else validated.
    """

    environ: Mapping[str, str]
    placeholders: bool = False
    secrets: set[str] = field(default_factory=set)


def parse_size(value: object) -> int:
    """`64MiB`, `1.5GB`, `512B` as bytes. Raises ValueError."""
    found = re.fullmatch(r"([0-9.]+) ?([KMGT]?i?B)", value) if isinstance(value, str) else None
    if found is None or not re.fullmatch(SIZE_PATTERN, str(value)):
        raise ValueError(f"{value!r} is not a size; write a number with its unit, such as 64MiB or 512KiB")
    return int(float(found[1]) * _UNIT_BYTES[found[2]])


def parse_gpus(value: object) -> tuple[int, ...]:
    """A count, or the list of indices. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1024:
        return tuple(range(value))
    if isinstance(value, list | tuple):
        wrong = [g for g in value if not isinstance(g, int) or isinstance(g, bool) or g < 0]
        if not wrong and len(set(value)) == len(value):
            return tuple(value)
    raise ValueError(f"{value!r} is neither a number of GPUs nor a list of different GPU indices")


def parse_ports(value: object) -> tuple[int, int]:
    """`20000-29999` as its two ends. Raises ValueError."""
    found = re.fullmatch(r"([0-9]+) ?- ?([0-9]+)", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is not a range of ports; write FIRST-LAST, such as 20000-29999")
    first, last = check_port(found[1]), check_port(found[2])
    if first > last:
        raise ValueError(f"the range {value} ends before it begins")
    return first, last


@dataclass(frozen=True, slots=True)
class Nics:
    """A node's RDMA devices: those every instance may use, or those near each GPU."""

    shared: tuple[str, ...] = ()
    by_gpu: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def near(self, gpus: tuple[int, ...]) -> tuple[str, ...]:
        """The devices for an instance on `gpus`, in the order of its GPUs, each once."""
        if not self.by_gpu:
            return self.shared
        mapped = dict(self.by_gpu)
        return tuple(dict.fromkeys(nic for gpu in gpus for nic in mapped.get(gpu, ())))


def parse_nics(value: object) -> Nics:
    """A list of device names, or a mapping from GPU index to a name or names. Raises ValueError."""
    if isinstance(value, Nics):
        return value
    if isinstance(value, list | tuple):
        return Nics(shared=_device_names(value))
    if isinstance(value, dict) and all(str(k).isdecimal() for k in value):
        pairs = ((int(k), _device_names(v if isinstance(v, list) else [v])) for k, v in value.items())
        return Nics(by_gpu=tuple(sorted(pairs)))
    raise ValueError(f"{value!r} is neither a list of devices nor a mapping from GPU index to device")


def _device_names(value: list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.:-]+", name):
            raise ValueError(f"{name!r} is not the name of a network device")
    return tuple(value)


def _listen(value: str) -> str:
    return join_host_port(*split_host_port(value))


def _not_a_port(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"{value} is a port alone; write HOST:PORT, such as 127.0.0.1:{value}")
    return value


def _engine_url(value: str) -> str:
    host, port = split_http_url(value)
    return f"http://{join_host_port(host, port)}"


def _zmq_url(value: str) -> str:
    scheme, _, rest = value.partition("://")
    if scheme != "tcp":
        raise ValueError(f"{value!r} is not an address of the form tcp://HOST:PORT")
    host, port = split_http_url(f"http://{rest}")
    return f"tcp://{join_host_port(host, port)}"


def unset(name: str, scope: Scope) -> str | None:
    """What is wrong with the environment variable `name`, if it cannot be filled in."""
    if scope.environ.get(name):
        return None
    return f"the environment variable {name} {'is empty' if name in scope.environ else 'is not set'}"


def placeholder(name: str) -> str:
    """What stands for an environment variable that is not set, in what is only shown."""
    return f"unset-{re.sub(r'[^A-Za-z0-9]', '-', name)}"


def resolve(text: str, scope: Scope) -> str:
    """`text` with its `${env:NAME}` filled in. Raises PydanticCustomError naming a missing variable."""

    def look_up(found: re.Match[str]) -> str:
        name = found[1]
        if why := unset(name, scope):
            if scope.placeholders:
                return placeholder(name)
            raise PydanticCustomError("env", why)
        value = scope.environ[name]
        scope.secrets.add(value)
        return value

    return REFERENCE.sub(look_up, text)


def _scope(info: ValidationInfo) -> Scope:
    return info.context if isinstance(info.context, Scope) else Scope({})


def _secret(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    scope = _scope(info)
    if misspelt := _LOOKALIKE.fullmatch(REFERENCE.sub("", value)):
        raise ValueError(
            f"{misspelt[0]} is not filled in: did you mean ${{env:{misspelt[1] or misspelt[2]}}}?"
        )
    filled = resolve(value, scope)
    if not filled or not filled.isascii() or not filled.isprintable() or " " in filled:
        raise ValueError("a key must be printable ASCII without spaces, and not empty")
    scope.secrets.add(filled)
    return filled


def _variable(value: object, info: ValidationInfo) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f'{value!r} is not text; programs differ in what means yes: quote "1" or "true"')
    text = resolve(str(value), _scope(info))
    if "\0" in text:
        raise ValueError("an environment variable cannot hold a NUL character")
    return text


def _flag(value: object) -> object:
    """A flag's value as JSON could hold it. Raises ValueError for NUL, which no command line can hold."""
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a command line cannot hold a NUL character")
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _flag(item)
    return value


def flag_name(name: str) -> str:
    """`--mem-fraction-static`, `mem_fraction_static` and `mem-fraction-static` alike as the last."""
    return name.removeprefix("--").replace("_", "-")


def _flag_names(flags: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, str] = {}
    for name in flags:
        plain = flag_name(name)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", plain):
            raise ValueError(f"{name!r} is not the name of a flag; write the value after the colon")
        if plain in seen:
            raise ValueError(f"{name!r} and {seen[plain]!r} are the same flag")
        seen[plain] = name
    return flags


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be more than zero")
    return value


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return check


_GPUS_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "array", "items": {"type": "integer"}}]}
_FLAG_SCHEMA = {"type": ["string", "number", "boolean", "null", "array", "object"]}

_DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN})

Duration = Annotated[float, AfterValidator(_positive), BeforeValidator(parse_duration), _DURATION_SCHEMA]
DurationOrZero = Annotated[float, BeforeValidator(parse_duration), _DURATION_SCHEMA]
Size = Annotated[
    int,
    AfterValidator(_positive),
    BeforeValidator(parse_size),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN}),
]
Name = Annotated[
    str,
    AfterValidator(_matching(NAME_PATTERN, "a name: lower-case letters, digits and hyphens, 63 at most")),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN}),
]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
CountOrNone = Annotated[int, Field(strict=True, ge=0)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
Host = Annotated[str, AfterValidator(check_host)]
Listen = Annotated[str, AfterValidator(_listen), BeforeValidator(_not_a_port)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
ZmqUrl = Annotated[str, AfterValidator(_zmq_url)]
PortRange = Annotated[
    tuple[int, int],
    PlainValidator(parse_ports),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+ ?- ?[0-9]+$"}),
]
Gpus = Annotated[
    tuple[int, ...],
    PlainValidator(parse_gpus),
    WithJsonSchema(_GPUS_SCHEMA),
]
NicList = Annotated[
    Nics,
    PlainValidator(parse_nics),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]}),
    PlainSerializer(lambda nics: list(nics.shared) or dict(nics.by_gpu)),
]
Secret = Annotated[SecretStr, BeforeValidator(_secret)]
Env = dict[
    Annotated[str, AfterValidator(_matching(ENV_PATTERN, "the name of an environment variable"))],
    Annotated[
        str | None,
        PlainValidator(_variable),
        WithJsonSchema({"type": ["string", "number", "null"], "x-interpolates": True}),
    ],
]
Flags = Annotated[
    dict[str, Annotated[Any, AfterValidator(_flag), WithJsonSchema(_FLAG_SCHEMA)]],
    AfterValidator(_flag_names),
]
HeaderName = Annotated[
    str,
    AfterValidator(_matching(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "the name of an HTTP header")),
    AfterValidator(str.lower),
]
