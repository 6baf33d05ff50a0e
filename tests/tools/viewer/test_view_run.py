"""`batchplant why --open`: the viewer shows what the training loop got."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

import batchplant as bp
from browser import Tab
from loaders import write_jpeg
from processes import start

PIXELS = """async (image) => {
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'),
    {width: image.naturalWidth, height: image.naturalHeight});
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
}"""


def test_a_step_is_shown_as_the_loop_got_it(chromium: Any, tmp_path: Path) -> None:
    photos, record = write_jpeg(tmp_path / "photos.beton", 12), str(tmp_path / "run.bprun")
    steps = {"image": [bp.ops.RandomResizedCrop(16), bp.ops.RandomHorizontalFlip()]}
    loader = bp.Loader(photos, 4, order="random", pipelines=steps, ids=True, record=record)
    batch = [*loader][1]
    loader.close()
    command = [sys.executable, "-m", "batchplant", "why", record, "--step", "1", "--open"]
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in screens}
    with start(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        url = next(line.strip() for line in process.stdout if line.startswith("http://"))
        page = chromium.new_page()
        tab = Tab(page, types.SimpleNamespace(url=url))
        tab.go()
        page.locator(".tile").nth(3).wait_for()
        assert page.locator(".tile").count() == 4
        tab.go("sample=2")
        large = page.locator("img.large")
        pixels = np.array(large.evaluate(PIXELS)).reshape(16, 16, 4)[..., :3]
        assert np.array_equal(pixels, batch["image"][2])
        assert str(batch["ids"][2]) in page.inner_text(".sample")
        page.close()
        assert not tab.complaints
