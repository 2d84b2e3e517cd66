"""Files are written whole or not at all, and read no further than they may be long."""

import errno
import os
import stat
from pathlib import Path

import pytest

from coterie import _files
from coterie._files import cache_root, locked, private_folder, read_bounded, without_checksum, write_atomic, write_new
from coterie.errors import CoterieError, DataError, FileError, IdentityError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("one_writer", [False, True])
@pytest.mark.parametrize("name", ["open", "pwrite", "fsync", "replace"])
def test_whatever_fails_the_old_file_stays(tmp_path, monkeypatch, name, one_writer):
    path = write_atomic(tmp_path / "a", b"old")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises(FileError, match="a cannot be written: No space left on device") as refused:
            write_atomic(path, b"new", one_writer=one_writer)
    assert isinstance(refused.value, OSError)
    assert isinstance(refused.value, CoterieError)
    assert refused.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls, real = [], {name: getattr(os, name) for name in ("pwrite", "fsync", "replace")}
    for name, call in real.items():
        monkeypatch.setattr(os, name, lambda *a, name=name, call=call: (calls.append(name), call(*a))[1])
    write_atomic(tmp_path / "a", b"text")
    assert calls == ["pwrite", "fsync", "replace", "fsync"]  # the file, then its name
    calls.clear()
    write_atomic(tmp_path / "a", b"text", sync_name=False)
    assert calls == ["pwrite", "fsync", "replace"]
    calls.clear()
    write_atomic(tmp_path / "a", b"text", durable=False)
    assert calls == ["pwrite", "replace"]


def test_a_draft_that_a_crash_left_is_overwritten(tmp_path):
    (tmp_path / ".a.draft").write_bytes(b"half of something longer")
    assert write_atomic(tmp_path / "a", b"new", one_writer=True).read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_pieces_are_put_together(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, content, start: real(fd, content[:3], start))
    assert write_atomic(tmp_path / "a", b"0123456789").read_bytes() == b"0123456789"


def test_secrets_are_for_their_owner(tmp_path):
    secret, public = write_atomic(tmp_path / "s", b"1", private=True), write_atomic(tmp_path / "p", b"2")
    assert (mode(secret), mode(public) & 0o600) == (0o600, 0o600)
    assert (read_bounded(secret, private=True), read_bounded(public)) == (b"1", b"2")
    secret.chmod(0o640)
    with pytest.raises(IdentityError, match=r"mode 0640.*chmod 600"):
        read_bounded(secret, private=True)
    folder = private_folder(tmp_path / "mine")
    assert mode(folder) == 0o700
    folder.chmod(0o755)
    assert mode(private_folder(folder)) == 0o700  # nothing in it yet
    write_atomic(folder / "a", b"")
    folder.chmod(0o755)
    with pytest.raises(IdentityError, match="chmod 700"):
        private_folder(folder)


def test_files_are_no_longer_than_they_may_be(tmp_path):
    path = write_atomic(tmp_path / "a", bytes(10))
    assert read_bounded(path, limit=10) == bytes(10)
    with pytest.raises(DataError, match="longer than 9 bytes"):
        read_bounded(path, limit=9)
    with pytest.raises(FileError, match="none cannot be read: No such file or directory"):
        read_bounded(tmp_path / "none")


def test_new_files_all_or_none(tmp_path):
    files = {tmp_path / "a.key": b"1", tmp_path / "b": b"2"}
    write_new(files, {"a.key"}, "a thing")
    assert mode(tmp_path / "a.key") == 0o600
    with pytest.raises(IdentityError, match=r"holds a thing already \(a\.key\)"):
        write_new(files, set(), "a thing")
    with pytest.raises(FileError):
        write_new({tmp_path / "c": b"", tmp_path / "no" / "d": b""}, set(), "a thing")
    assert sorted(os.listdir(tmp_path)) == ["a.key", "b"]


def test_one_bit_is_seen():
    content = _files.with_checksum(b"magic\n", b"body")
    assert without_checksum(b"magic\n", content) == b"body"
    for place in range(len(content)):
        bad = bytearray(content)
        bad[place] ^= 1
        if place < len(b"magic\n"):
            with pytest.raises(DataError, match="does not begin with"):
                without_checksum(b"magic\n", bytes(bad))
        else:
            assert without_checksum(b"magic\n", bytes(bad)) is None
    with pytest.raises(DataError):
        without_checksum(b"magic\n", b"magic\n")


def test_a_lock_leaves_nothing_behind(tmp_path):
    with locked(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_where_files_are_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("COTERIE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if os.uname().sysname == "Linux":
        assert cache_root() == tmp_path / ".cache" / "coterie"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
        assert cache_root() == Path(tmp_path, "elsewhere", "coterie")
