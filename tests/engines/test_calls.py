"""A call that an adapter has made is plain data that plans are written with and read from."""

from pydantic import TypeAdapter

from orchestrator.engines.calls import HttpCall


def test_a_call_survives_being_written_and_read() -> None:
    call = HttpCall("POST", "/x", b"{}", port=8998, headers=(("a", "b"),))
    adapter = TypeAdapter(HttpCall)
    assert adapter.validate_json(adapter.dump_json(call)) == call
