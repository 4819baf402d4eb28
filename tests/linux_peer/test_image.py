"""Building the image, without building one: the cache, and what is said where there can be no guest."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import time

import pytest

from sim.linux_peer import PeerUnavailable, default_cache, host_tools, image


def test_a_folder_is_whole_or_not_there(tmp_path):
    def fails(folder):
        (folder / "half").write_text("")
        raise PeerUnavailable("no")
    with pytest.raises(PeerUnavailable):
        image._layer(tmp_path, "base", "1", False, fails)
    assert [path.name for path in tmp_path.iterdir()] == ["base-1.lock"]


def test_two_builders_at_once_build_once(tmp_path):
    built = []

    def build(folder):
        built.append(folder)
        (folder / "first").write_text("1")
        time.sleep(.2)
        (folder / "second").write_text("2")

    def builder(_):
        folder = image._layer(tmp_path, "base", "1", False, build)
        return sorted(path.name for path in folder.iterdir())
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(builder, range(4))) == [["first", "second"]] * 4
    assert len(built) == 1


def test_a_new_one_takes_the_place_of_the_old(tmp_path):
    for n in range(2):
        image._layer(tmp_path, "base", "1", n > 0, lambda folder: (folder / "n").write_text(str(n)))
    assert (tmp_path / "base-1/n").read_text() == "1" and len(list(tmp_path.iterdir())) == 2


def test_another_source_is_another_image(tmp_path):
    source = tmp_path / "a.c"
    source.write_text("one")
    first = image._digest([source], "more")
    source.write_text("two")
    assert len({first, image._digest([source], "more"), image._digest([source], "other"), image._digest([], "more")}) == 4


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv(image.CACHE_VARIABLE, str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv(image.CACHE_VARIABLE)
    assert default_cache() == Path.home() / ".cache/optinic/linux-peer"


def test_a_cache_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PeerUnavailable, match=f"cache {tmp_path}/file/x can't be used.*OPTINIC_LINUX_PEER"):
        image._layer(tmp_path / "file/x", "base", "1", False, lambda folder: None)


def test_what_is_missing_is_said(monkeypatch):
    """To those who can't install it, in one line."""
    there = {"apt-get", "dpkg-deb", "gcc", "cpio"}
    monkeypatch.setattr(host_tools.shutil, "which", lambda command, path=None: command if command in there else None)
    monkeypatch.setattr(host_tools, "run_tool", lambda *command, what: "amd64\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PeerUnavailable) as caught:
        host_tools.need_host_tools()
    said = str(caught.value)
    assert "sudo apt-get install" in said and "qemu-system-x86" in said and "\n" not in said
    there.clear()
    with pytest.raises(PeerUnavailable, match="no apt-get"):
        host_tools.need_host_tools()


def test_a_tool_that_fails_is_quoted():
    with pytest.raises(PeerUnavailable, match="it is so: `sh` ended with status 3: because"):
        host_tools.run_tool("sh", "-c", "echo first >&2; echo because >&2; exit 3", what="it is so")
