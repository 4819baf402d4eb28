"""Build the image of the Linux peer and boot it once: is everything here that tests with a peer need?"""

import json
import sys
import time

import click

from . import Guest, PeerError, build_image, default_cache


@click.command()
@click.option("--cache", type=click.Path(file_okay=False),
              help="Folder for the image; else OPTINIC_LINUX_PEER, else ~/.cache/optinic/linux-peer.")
@click.option("--rebuild", is_flag=True, help="Make it anew, with the packages of today.")
@click.option("--boot/--no-boot", default=True, help="Boot it and ask it for its devices.")
@click.option("--json", "as_json", is_flag=True, help="Print what there is as JSON.")
def main(cache, rebuild, boot, as_json):
    """Build the Linux guest that tests talk RoCE with (docs/linux-peer.md), unless it is there, and boot it once. As root, QEMU and
    what else is missing is installed with apt-get."""
    def progress(text):
        click.echo(f"{text} ...", err=True)
    try:
        image = build_image(cache, rebuild=rebuild, progress=progress)
        found = {"cache": str(cache or default_cache()), "kernel": str(image.kernel), "initramfs": str(image.initramfs),
                 "versions": image.versions}
        if boot:
            progress("booting")
            start = time.monotonic()
            with Guest(image) as guest:
                found |= {"boot_s": round(time.monotonic() - start, 1), "uname": guest.run("uname -srv").strip(),
                          "device": guest.run("rdma link").strip()}
    except PeerError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        for key, value in found.items():
            if key != "versions":
                click.echo(f"{key:10} {value}")


if __name__ == "__main__":
    main()
