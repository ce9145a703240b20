"""The state directory: private, identified by its path, and with one controller."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import LaunchError
from orchestrator.launch.paths import Lock, StateDir, controller_pid, reaching, write_private, writing


def test_it_is_made_private_and_a_loose_one_is_tightened(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "a" / "b")
    state.create()
    assert state.root.stat().st_mode & 0o777 == 0o700
    state.root.chmod(0o755)
    state.create()
    assert state.root.stat().st_mode & 0o777 == 0o700
    assert state.log("p1").parent.is_dir()


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(LaunchError, match=r"/state is no folder; .*`state_dir`"):
        StateDir(tmp_path / "state").create()


def test_a_file_in_the_place_of_its_logs_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(LaunchError, match=r"/logs is no folder; .*`state_dir`"):
        StateDir(tmp_path).create()


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to(tmp_path / "none")
    with pytest.raises(LaunchError, match=r"/state is no folder"):
        StateDir(tmp_path / "state").create()


def test_somebody_else_s_is_refused(tmp_path: Path) -> None:
    state = StateDir(tmp_path if os.geteuid() == 0 else "/usr")
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, -1)
    with pytest.raises(LaunchError, match=f"belongs to user id {state.root.stat().st_uid}"):
        state.create()


def test_the_same_folder_has_the_same_id_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert StateDir(tmp_path / "link").id == StateDir(tmp_path / "real").id
    assert StateDir(tmp_path / "real").id != StateDir(tmp_path / "other").id


def test_files_are_replaced_in_one_step_and_private(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.mkdir()
    with pytest.raises(LaunchError, match=r"plan\.json: Is a directory; move it away") as error:
        write_private(path, b"new")
    assert error.value.reason == "state-dir"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "No space left on device; free some there, or set another `state_dir`"),
        (errno.EROFS, "Read-only file system; set a `state_dir` that can be written"),
        (errno.EACCES, "Permission denied; is `state_dir` what it should be, and yours?"),
        (errno.ENOENT, "it was removed meanwhile; run `pdctl up` again"),
    ],
)
def test_every_refusal_names_the_file_and_the_way_out(number: int, fix: str) -> None:
    with (
        pytest.raises(LaunchError, match=f"^/s/plan.json: .*{re.escape(fix)}$"),
        writing(Path("/s/plan.json")),
    ):
        raise OSError(number, os.strerror(number))


def test_that_nothing_is_there_is_an_answer_to_a_reader() -> None:
    with pytest.raises(FileNotFoundError), reaching(Path("/s/plan.json")):
        raise FileNotFoundError(errno.ENOENT, "")


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_lock_whose_file_is_gone_keeps_nobody_out(tmp_path: Path, again: bool) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    lock = Lock(state)
    assert lock.acquire()
    lock.check()
    state.lock.unlink()
    if again:
        state.lock.write_text("1")
    with pytest.raises(LaunchError, match="was removed or replaced: this controller lets go"):
        lock.check()
    lock.release()


def test_one_holds_the_lock_and_is_named(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    assert controller_pid(state) is None
    first, second = Lock(state), Lock(state)
    assert first.acquire()
    assert not second.acquire()
    assert controller_pid(state) == os.getpid()
    first.release()
    first.release()
    assert controller_pid(state) is None
    assert second.acquire()
    second.release()


def test_the_kernel_releases_the_lock_of_the_dead(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    state.create()
    code = (
        "import sys, time\n"
        "from orchestrator.launch.paths import Lock, StateDir\n"
        "lock = Lock(StateDir(sys.argv[1])); lock.acquire(); print(flush=True); time.sleep(3600)"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(state.root)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert controller_pid(state) == child.pid
        assert not Lock(state).acquire()
        child.kill()
        child.wait()
        assert controller_pid(state) is None


@pytest.mark.parametrize("below", ["", "sub"])
def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("")
    state = StateDir(tmp_path / "taken" / below)
    for reach in (lambda: controller_pid(state), Lock(state).acquire, state.create):
        with pytest.raises(LaunchError, match=str(state.root)) as caught:
            reach()
        assert caught.value.reason == "state-dir"


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.lock.mkdir()
    with pytest.raises(LaunchError, match=r"controller\.lock: Is a directory"):
        Lock(state).acquire()
