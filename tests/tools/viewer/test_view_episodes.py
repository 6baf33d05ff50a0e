"""The viewer: episodes with the images of all cameras at one frame, and the curves of state and action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs import image
from browser import viewed
from viewing import asked

LENGTHS = (20, 8, 31)
CAMERAS = ("observation.images.top", "observation.images.wrist")


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A camera stored as video and one as images; both become brighter by 8 levels a frame."""
    pytest.importorskip("av")
    pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("robot") / "push.lerobot"
    kinds: dict[str, Any] = {
        CAMERAS[0]: bp.Tensor("uint8", (48, 64, 3)), CAMERAS[1]: bp.Image("png"),
        "observation.state": bp.Tensor("float32", (3,)), "action": bp.Tensor("float32", (10,)),
        "episode_index": bp.Int(), "task": bp.Text(),
    }  # fmt: skip
    with bp.create(path, kinds, fps=20, videos=CAMERAS[:1]) as out:
        for episode, length in enumerate(LENGTHS):
            for frame in range(length):
                pixels = np.full((48, 64, 3), 8 * frame, np.uint8)
                sample = {CAMERAS[0]: pixels, CAMERAS[1]: image.encode(pixels, "png")}
                state = np.sin(np.arange(3) + frame / 5).astype(np.float32)
                sample |= {"observation.state": state, "action": np.full(10, frame, np.float32)}
                out.append({**sample, "episode_index": episode, "task": f"task {episode}"})
    return bp.open(path)


def test_an_episode_has_its_cameras_and_curves(robot: Any) -> None:
    with asked(robot) as ask:
        assert ask("dataset")["episodes"] == 3
        episode = ask("episode/1")
        assert (episode["first"], episode["frames"], episode["fps"]) == (20, 8, 20)
        assert (tuple(episode["cameras"]), episode["texts"]) == (CAMERAS, {"task": "task 1"})
        state, action = episode["curves"]
        assert (state["field"], action["field"]) == ("observation.state", "action")
        assert action["values"] == [list(range(8))] * 10
        for camera in CAMERAS:
            shown = image.decode(ask(f"camera/25/{camera}", max=32).content)
            assert shown.shape[:2] == (24, 32)
            assert abs(float(shown.mean()) - 40) < 4
        for wrong in ("episode/3", "episode/-1", "episode/x", "camera/999/action"):
            ask(wrong, 404 if "camera" in wrong else 200)
        ask("camera/0/action", 422)


def test_a_table_without_episodes_has_no_such_tab() -> None:
    with asked(bp.open({"action": np.zeros(9)})) as ask:
        assert ask("dataset")["episodes"] == 0


BRIGHTNESS = """() => [...document.querySelectorAll('.cameras img')].map((image) => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data[0];
})"""


def test_cameras_move_together(chromium: Any, robot: Any) -> None:
    with viewed(chromium, robot) as tab:
        page = tab.go("tab=episodes&episode=2&frame=5").page

        def check(frame: int) -> None:
            page.wait_for_selector(f"[data-frame='{frame}'] .cameras img")
            levels = page.evaluate(BRIGHTNESS)
            assert len(levels) == 2
            assert max(abs(level - 8 * frame) for level in levels) <= 4

        check(5)
        assert page.locator(".curves article").count() == 2
        assert tab.axe() == []
        page.get_by_role("slider", name="Frame").press("ArrowRight")
        check(6)
        page.get_by_role("button", name="Next frame").click()
        check(7)
        # A click into the middle of a curve leads to the middle of the episode.
        box = page.get_by_label("action along the episode").bounding_box()
        page.mouse.click(box["x"] + 46 + (box["width"] - 56) / 2, box["y"] + 60)
        check(15)
        cursor = page.locator(".curves .cursor")
        assert cursor.nth(0).get_attribute("x1") == cursor.nth(1).get_attribute("x2")
        page.wait_for_function("() => location.hash.includes('frame=15')")
        page.get_by_role("button", name="Play").click()
        check(30)
        page.get_by_role("button", name="Play").wait_for()
        page.get_by_role("button", name="Previous episode").click()
        check(0)
        page.get_by_text("task 1").wait_for()
        page.get_by_role("link", name="sample 20").click()
        page.wait_for_function("() => location.hash.includes('sample=20')")


@pytest.mark.exhaustive
def test_a_camera_that_cannot_be_decoded_says_so(chromium: Any, robot: Any) -> None:
    with viewed(chromium, robot, width=390, scheme="dark", allowed=("Failed to load resource",)) as tab:
        tab.page.route(f"**/camera/*/{CAMERAS[1]}*", lambda route: route.fulfill(status=422, body="{}"))
        tab.go("tab=episodes")
        tab.page.get_by_text("this frame cannot be decoded").wait_for()
        assert tab.page.locator(".cameras img").count() == 1
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.axe() == []
