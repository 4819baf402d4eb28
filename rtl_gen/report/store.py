"""Where finished results are kept between runs: one JSON file each, written whole or not at all."""

import json
import os
import tempfile
from pathlib import Path

__all__ = ["Store", "StoreError", "usable_folder", "write_whole"]


class StoreError(OSError):
    """A folder can't be written to."""


def usable_folder(folder):
    """Make a folder and see that files can be written into it; one line says what is wrong if not."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(f"can't write into {folder} ({error.strerror}); choose another folder with -o") from None
    return folder


def write_whole(path, text):
    """Write a file beside its place and move it there: whoever reads sees the old one or the new one."""
    path = Path(path)
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)


class Store:
    def __init__(self, folder):
        self.folder = usable_folder(folder)

    def get(self, kind, key):
        """What was put, or None; a file that can't be read counts as none."""
        try:
            return json.loads((self.folder / kind / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, kind, key, value):
        usable_folder(self.folder / kind)
        write_whole(self.folder / kind / f"{key}.json", json.dumps(value, indent=1) + "\n")
