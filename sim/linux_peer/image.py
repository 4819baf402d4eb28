"""The guest's kernel and file system, made from distribution packages and kept in a cache.

    image = build_image()
    image.kernel, image.initramfs

Two layers, each in a folder named after a hash of what goes into it: `base-*`, kernel, modules, libraries and tools from
packages, by the names of these and by this file; `image-*`, the base and our own programs in `guest/`, by their sources. A
changed program so costs a second, not a minute. Package versions are those of the day of building, listed in
`base-*/manifest.json`; `rebuild=True` takes today's. A folder appears complete or not at all, and builders wait for each other.
"""

from contextlib import contextmanager
from dataclasses import dataclass
import fcntl
import hashlib
import json
import os
from pathlib import Path
import shutil
import subprocess
import tempfile
from urllib.parse import unquote

from .errors import PeerUnavailable
from .host_tools import need_host_tools, run_tool, tool_path

__all__ = ["Image", "build_image", "default_cache"]

CACHE_VARIABLE = "OPTINIC_LINUX_PEER"
GUEST = Path(__file__).parent / "guest"

PACKAGES = ("busybox-static", "dash", "libc6", "ibverbs-providers", "ibverbs-utils", "libibverbs-dev", "perftest", "iproute2",
            "tcpdump")
KERNEL = "linux-image-amd64"            # the -cloud- kernels have no rdma_rxe
MODULES = ("virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "rdma_ucm")
PROGRAMS = ("bin/ip", "sbin/tc", "usr/bin/rdma", "usr/bin/tcpdump", "usr/bin/ibv_devinfo", "usr/bin/ibv_devices",
            "usr/bin/ibv_rc_pingpong", "usr/bin/ibv_uc_pingpong", "usr/bin/ibv_ud_pingpong",
            "usr/bin/ib_write_bw", "usr/bin/ib_write_lat", "usr/bin/ib_read_bw", "usr/bin/ib_read_lat", "usr/bin/ib_send_bw",
            "usr/bin/ib_send_lat", "usr/bin/ib_atomic_bw", "usr/bin/ib_atomic_lat")
#: better from elsewhere; and Debian's BusyBox shell prefers its own ip to any other, so it isn't the shell either
NOT_BUSYBOX = {"busybox", "ip", "tc", "sh", "ash"}
LIBRARY_FOLDERS = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
PROVIDER = "usr/lib/x86_64-linux-gnu/libibverbs"
LOADER = "lib64/ld-linux-x86-64.so.2"
#: our programs -> how they are linked
OUR_PROGRAMS = {"job_server": ("-static",), "flood": ("-static",), "verbs_peer": ("-l:libibverbs.so.1",)}


@dataclass(frozen=True)
class Image:
    kernel: Path
    initramfs: Path
    versions: dict          #: package -> version


def default_cache():
    """The folder of the environment variable OPTINIC_LINUX_PEER, or ~/.cache/optinic/linux-peer."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "optinic" / "linux-peer")


def build_image(cache=None, *, rebuild=False, progress=lambda text: None):
    """The :class:`Image`, from the cache or built into it; installs what that needs. `progress(text)` is told what takes time.
    PeerUnavailable says in one line why there can be none."""
    cache = Path(cache) if cache is not None else default_cache()
    need_host_tools(progress)
    base = _layer(cache, "base", _digest([Path(__file__)], PACKAGES, KERNEL), rebuild,
                  lambda folder: _build_base(folder, progress))
    manifest = json.loads((base / "manifest.json").read_text())
    image = _layer(cache, "image", _digest(sorted(GUEST.iterdir()), [base.name, manifest["stamp"]]), rebuild,
                   lambda folder: _build_overlay(folder, base, progress))
    return Image(base / "vmlinuz", image / "initramfs.img", manifest["versions"])


# -- the cache ----------------------------------------------------------------------------------------------


def _digest(files, *texts):
    found = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)} ".encode() + data)
    found.update(repr(texts).encode())
    return found.hexdigest()[:16]


def _layer(cache, name, digest, rebuild, build):
    folder = cache / f"{name}-{digest}"
    if folder.is_dir() and not rebuild:
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{name}-{digest}.lock"):
            if folder.is_dir() and not rebuild:     # somebody else was faster
                return folder
            with tempfile.TemporaryDirectory(prefix=f"{name}-", suffix=".new", dir=cache) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                build(made)
                if folder.is_dir():                 # guests that run from it have read all of it
                    folder.rename(Path(scratch) / "old")
                made.rename(folder)
    except OSError as error:
        raise PeerUnavailable(f"the cache {cache} can't be used: {error}; choose another one: {CACHE_VARIABLE}=FOLDER") from None
    return folder


@contextmanager
def _locked(path):
    with open(path, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# -- base: from packages ------------------------------------------------------------------------------------


def _build_base(made, progress):
    with tempfile.TemporaryDirectory(prefix="packages-", suffix=".new", dir=made.parent.parent) as scratch:
        work = Path(scratch)
        progress("fetching kernel and packages")
        kernel_debs, debs = _download(work)
        root, kernel, tree = work / "root", work / "kernel", work / "tree"
        for deb in debs:
            run_tool("dpkg-deb", "-x", deb, root, what=f"{deb.name} can't be unpacked")
        for deb in kernel_debs:
            run_tool("dpkg-deb", "-x", deb, kernel, what=f"{deb.name} can't be unpacked")
        progress("building the guest's file system")
        _copy_programs(root, tree)
        _copy_modules(kernel, tree)
        image, = (kernel / "boot").glob("vmlinuz-*")
        shutil.copy(image, made / "vmlinuz")
        _archive(tree, made / "base.img", level=12)
        shutil.copytree(root / "usr/include", made / "include", symlinks=True)
        shutil.copytree(tree / "usr/lib/x86_64-linux-gnu", made / "lib")
        versions = dict(unquote(name).split("_")[:2] for name in sorted(deb.name for deb in kernel_debs + debs))
        manifest = {"stamp": _digest([made / "base.img", made / "vmlinuz"]), "versions": versions}
        (made / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _download(work):
    """([the kernel's package], [packages of the programs and all that they need]), by the machine's own apt configuration."""
    (work / "status").touch()               # as if nothing were installed, so that everything needed is named
    (work / "debs/partial").mkdir(parents=True)
    private = ["-o", f"Dir::State::status={work}/status", "-o", f"Dir::Cache::archives={work}/debs", "-o", "Dir::Cache::pkgcache=",
               "-o", "Dir::Cache::srcpkgcache=", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=", "-qq"]
    advice = "packages for a Linux peer can't be fetched; `apt-get update` may help"

    def fetch():
        run_tool("apt-get", *private, "-y", "--no-install-recommends", "--download-only", "install", *PACKAGES, what=advice)
    try:
        fetch()
    except PeerUnavailable:                 # the lists may be old, or there may be none
        if os.geteuid() != 0:
            raise
        run_tool("apt-get", "-qq", "update", what="the package lists can't be fetched")
        fetch()
    said = run_tool("apt-cache", "depends", "--no-recommends", "--no-suggests", KERNEL, what=f"there is no package {KERNEL}")
    names = [line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise PeerUnavailable(f"the package {KERNEL} names no kernel; a Linux peer needs Debian's")
    (work / "linux").mkdir()
    run_tool("apt-get", *private, "download", names[0], what=advice, cwd=work / "linux")
    return sorted((work / "linux").glob("*.deb")), sorted((work / "debs").glob("*.deb"))


def _copy_programs(root, tree):
    """BusyBox, the programs, and the libraries and the loader that they name."""
    for folder in ("bin", "dev", "etc", "proc", "sys", "tmp", "run", "usr/bin", "usr/lib", "lib64", PROVIDER):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    busybox = tree / "bin/busybox"
    shutil.copy(root / "bin/busybox", busybox)
    for applet in run_tool(busybox, "--list", what="BusyBox can't be run").split():
        if applet not in NOT_BUSYBOX:
            (tree / "bin" / applet).symlink_to("busybox")
    shutil.copy(root / "bin/dash", tree / "bin/sh")
    (tree / "etc/libibverbs.d").mkdir()
    shutil.copy(root / "etc/libibverbs.d/rxe.driver", tree / "etc/libibverbs.d")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\ntcpdump:x:100:100::/:/bin/false\n")
    (tree / "etc/group").write_text("root:x:0:\ntcpdump:x:100:\n")
    files = [tree / "bin/sh"]
    for program in PROGRAMS:
        files.append(tree / "usr/bin" / Path(program).name)
        shutil.copy(root / program, files[-1])
    for provider in (root / PROVIDER).glob("librxe-rdmav*.so"):
        files.append(tree / PROVIDER / provider.name)
        shutil.copy(provider, files[-1])
    shutil.copy(root / LOADER, tree / LOADER)
    libraries = tree / LIBRARY_FOLDERS[1]
    waiting = list(files)
    while waiting:
        for name in _needed(waiting.pop()):
            if name == Path(LOADER).name or (libraries / name).exists():
                continue
            found = [root / folder / name for folder in LIBRARY_FOLDERS if (root / folder / name).exists()]
            if not found:
                raise PeerUnavailable(f"{name} is in none of the packages {' '.join(PACKAGES)}")
            shutil.copy(found[0], libraries / name)
            waiting.append(libraries / name)
    run_tool("strip", "--strip-unneeded", *files, *libraries.glob("*.so*"), what="the guest's programs can't be stripped")


def _needed(binary):
    said = run_tool("readelf", "-d", binary, what=f"{binary} is no program")
    return [line.split("[")[1].split("]")[0] for line in said.splitlines() if "(NEEDED)" in line]


def _copy_modules(kernel, tree):
    """The modules with all they depend on, and `modules.list`, the order to load them in."""
    version, = (folder.name for folder in (kernel / "lib/modules").iterdir())
    environment = {**os.environ, "PATH": tool_path()}
    run_tool("depmod", "-b", kernel, version, what="the kernel's modules can't be read", env=environment)
    order = []
    for module in MODULES:
        said = run_tool("modprobe", "-d", kernel, "-S", version, "--show-depends", module, env=environment,
                        what=f"kernel {version} has no module {module}")
        order += [line.split()[1] for line in said.splitlines() if line.startswith("insmod ")]
    (tree / "lib/modules").mkdir(parents=True)
    listed = []
    for path in dict.fromkeys(order):
        target = tree / "lib/modules" / Path(path).name
        if path.endswith(".xz"):            # some kernels ship them packed
            target = target.with_suffix("")
            target.write_bytes(subprocess.run(["xz", "-dc", path], check=True, capture_output=True).stdout)
        else:
            shutil.copy(path, target)
        listed.append(f"/lib/modules/{target.name}\n")
    run_tool("strip", "--strip-debug", *(tree / "lib/modules").iterdir(), what="the kernel's modules can't be stripped")
    (tree / "modules.list").write_text("".join(listed))


# -- on top of it: our own programs -------------------------------------------------------------------------


def _build_overlay(made, base, progress):
    progress("compiling the guest's programs")
    tree = made / "tree"
    (tree / "usr/bin").mkdir(parents=True)
    shutil.copy(GUEST / "init", tree / "init")
    (tree / "init").chmod(0o755)
    for name, link in OUR_PROGRAMS.items():
        run_tool("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", tree / "usr/bin" / name, GUEST / f"{name}.c", "-I",
                 base / "include", "-L", base / "lib", f"-Wl,-rpath-link,{base / 'lib'}", *link,
                 what=f"{name}.c can't be compiled")
    _archive(tree, made / "overlay.img", level=3)
    with open(made / "initramfs.img", "wb") as out:         # the kernel unpacks archives one after the other
        for part in (base / "base.img", made / "overlay.img"):
            out.write(part.read_bytes())
    (made / "overlay.img").unlink()
    shutil.rmtree(tree)


def _archive(tree, path, level):
    names = "\n".join(sorted(str(p.relative_to(tree)) for p in tree.rglob("*"))) + "\n"
    packed = subprocess.run(["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"], input=names.encode(), cwd=tree, check=True,
                            capture_output=True).stdout
    done = subprocess.run(["zstd", "-q", f"-{level}", "-c"], input=packed, check=True, capture_output=True).stdout
    path.write_bytes(done)
