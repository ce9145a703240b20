"""Records are found by either id or its beginning, newest first; what is no record is passed over."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.analysis.records import Log


def write(directory: Path, number: int, *ids: str, more: bytes = b"") -> None:
    directory.mkdir(exist_ok=True)
    lines = [
        json.dumps({"request_id": one, "client_request_id": f"c-{one}"}, separators=(",", ":")) for one in ids
    ]
    (directory / f"{number:08}.jsonl").write_bytes("".join(f"{line}\n" for line in lines).encode() + more)


def test_the_newest_come_first_over_all_files(tmp_path: Path) -> None:
    write(tmp_path, 9, "a", "b")
    write(tmp_path, 10, "c", "d")
    assert [r["request_id"] for r in Log(tmp_path).newest()] == ["d", "c", "b", "a"]


def test_nothing_and_no_folder_are_no_records(tmp_path: Path) -> None:
    assert list(Log(tmp_path / "none").newest()) == []
    assert Log(tmp_path).find("x") == Log(tmp_path).near("x") == []


def test_what_is_cut_off_or_no_record_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 1, "a", more=b'not json\n[1]\n{"x":1}\n\xff\xfe\n{"request_id":"half"')
    (tmp_path / "notes.jsonl").write_text("{}\n")
    assert [r["request_id"] for r in Log(tmp_path).newest()] == ["a"]
    assert [r["request_id"] for r in Log(tmp_path).find("a")] == ["a"]


def test_a_record_is_found_by_either_id(tmp_path: Path) -> None:
    write(tmp_path, 1, "aaaa1111", "bbbb2222")
    write(tmp_path, 2, "cccc3333")
    log = Log(tmp_path)
    for wanted in ("bbbb2222", "c-bbbb2222"):
        assert [r["request_id"] for r in log.find(wanted)] == ["bbbb2222"]


def test_an_id_that_a_client_used_twice_has_two_records(tmp_path: Path) -> None:
    write(tmp_path, 1, "a", "b")
    text = (tmp_path / "00000001.jsonl").read_text().replace("c-b", "c-a")
    (tmp_path / "00000001.jsonl").write_text(text)
    assert [r["request_id"] for r in Log(tmp_path).find("c-a")] == ["b", "a"]


def test_a_beginning_that_one_id_alone_has_is_enough(tmp_path: Path) -> None:
    write(tmp_path, 1, "abcd1111", "abce2222", "ffff3333")
    log = Log(tmp_path)
    assert [r["request_id"] for r in log.find("ffff")] == ["ffff3333"]
    assert log.find("fff") == log.find("abc") == []
    assert log.near("abcd1112") == ["abcd1111"]
    assert log.near("abce") == ["abce2222"]
    assert log.near("c-ffff3339") == ["c-ffff3333"]
    assert log.near("zzzz") == []
