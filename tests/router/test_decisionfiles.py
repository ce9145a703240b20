"""The decision log's files: whole lines, bounded, resumed, and nothing left of what the disk did not take."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.router.decisionfiles import PARTS, DecisionFiles, parts

LINE = b'{"x":"0123456789"}\n'


def lines(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in parts(directory))


def test_lines_are_appended_for_the_owners_eyes_only(tmp_path: Path) -> None:
    files = DecisionFiles(tmp_path / "a" / "b", 10_000)
    files.append(LINE)
    files.append(LINE * 2)
    [path] = parts(tmp_path / "a" / "b")
    assert path.read_bytes() == LINE * 3
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_new_process_goes_on_with_the_last_file(tmp_path: Path) -> None:
    for _ in range(3):
        files = DecisionFiles(tmp_path, 10_000)
        files.append(LINE)
        files.close()
    assert lines(tmp_path) == LINE * 3
    assert len(parts(tmp_path)) == 1


def test_a_line_that_was_cut_off_by_a_kill_is_closed(tmp_path: Path) -> None:
    (tmp_path / "00000007.jsonl").write_bytes(LINE + b'{"x":"01')
    DecisionFiles(tmp_path, 10_000).append(LINE)
    assert lines(tmp_path) == LINE + b'{"x":"01\n' + LINE


def test_the_oldest_go_so_that_all_stay_within_their_share(tmp_path: Path) -> None:
    keep = 200 * len(LINE)
    files = DecisionFiles(tmp_path, keep)
    for number in range(1000):
        files.append(b'{"x":"%010d"}\n' % number)
        assert sum(path.stat().st_size for path in parts(tmp_path)) <= keep
    found = lines(tmp_path).split()
    assert found[-1] == b'{"x":"0000000999"}'
    assert len(found) > 200 * (PARTS - 2) / PARTS
    assert [int(path.stem) for path in parts(tmp_path)] == list(range(33, 41))


def test_two_routers_do_not_write_into_one_file(tmp_path: Path) -> None:
    one, other = DecisionFiles(tmp_path, 10_000), DecisionFiles(tmp_path, 10_000)
    one.append(LINE)
    other.append(LINE * 2)
    one.append(LINE)
    assert [path.read_bytes() for path in parts(tmp_path)] == [LINE * 2, LINE * 2]
    one.close()
    other.append(LINE)


def test_a_folder_that_was_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    files = DecisionFiles(tmp_path / "d", 10_000)
    files.append(LINE)
    [path] = parts(tmp_path / "d")
    path.unlink()
    path.parent.rmdir()
    files.append(LINE * 2)
    assert lines(tmp_path / "d") == LINE * 2


def test_a_full_disk_leaves_whole_lines_and_the_next_try_goes_on_behind_them(tmp_path: Path) -> None:
    room = 50

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(room, len(data))
        room -= taken
        return os.write(fd, data[:taken])

    files = DecisionFiles(tmp_path, 10_000, write=write)
    files.append(LINE)
    with pytest.raises(OSError, match="No space"):
        files.append(LINE * 5)
    assert lines(tmp_path) == LINE
    room = 1000
    files.append(LINE)
    assert lines(tmp_path) == LINE * 2


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(OSError, match="exists"):
        DecisionFiles(tmp_path / "d", 10_000).append(LINE)
    assert parts(tmp_path / "d") == []
    assert parts(tmp_path / "none") == []


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_bytes(b"mine\n")
    files = DecisionFiles(tmp_path, 8 * len(LINE))
    for _ in range(50):
        files.append(LINE)
    assert (tmp_path / "notes.jsonl").read_bytes() == b"mine\n"
