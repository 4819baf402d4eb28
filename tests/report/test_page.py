"""The page in a real browser, light and dark: it has colours of its own in both, and something is drawn in every chart."""

import shutil
import subprocess

import numpy as np
import pytest

from rtl_gen.report.assemble import assemble
from rtl_gen.report.designs import designs_of
from rtl_gen.report.page import as_page

from .fakes import fake_result

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
WIDTH, HEIGHT = 1000, 4200


def screenshot(page, target, dark):
    """Pixels of a page, height x width x RGB from 0 to 1."""
    from matplotlib.image import imread
    subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={target.parent}/profile",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={target}",
                    page.as_uri()], check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return imread(target)[..., :3]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium, or another browser of that family")
def test_in_a_browser(tmp_path):
    found = {d: fake_result(d.cfg, d.family) for d in designs_of("tiny", "xp,rc", "16,64")}
    page = tmp_path / "report.html"
    page.write_text(as_page(assemble(found, "optinic report")), encoding="utf-8")
    light, dark = screenshot(page, tmp_path / "light.png", False), screenshot(page, tmp_path / "dark.png", True)
    assert light.shape == dark.shape == (HEIGHT, WIDTH, 3)
    assert np.median(light) > 0.9 and np.median(dark) < 0.2
    for pixels in (light, dark):
        colourful = np.ptp(pixels, axis=2) > 0.2
        assert colourful.mean() > 0.01                      # bars and lines
        # in each of the chart colours there is something, and text stands out from its background
        assert len({tuple(c) for c in (pixels[colourful][::50] * 8).astype(int)}) >= 5
        text = pixels[:200].mean(axis=2)
        assert np.ptp(text) > 0.7
