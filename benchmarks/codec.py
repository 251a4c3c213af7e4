"""Encoding and decoding of one batch, at three sizes.

Encoding is the checksum included, decoding the checksum and every check of the contents.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.measure import Row, own_cpu_s, spread
from benchmarks.workload import LARGE, SMALL, Shape, scene, w1
from heddle.batch import checksum, decode, encode
from heddle.layout import Layout, Segments, make_layout
from heddle.policies.base import OutputSpec
from heddle.spaces import Box, Discrete

SECTION = "codec"
ROUNDS = 9
SECONDS = 0.15
CAP = 1 << 30
IMAGES = 512


def run() -> list[Row]:
    """Rows for all sizes."""
    rows = []
    for name, (layout, segments) in {
        "CartPole, 64 steps": _cartpole(SMALL),
        "CartPole, 4,096 steps": _cartpole(LARGE),
        f"84x84x4 images, {IMAGES} steps": _images(),
    }.items():
        rows += _rows(name, layout, segments)
    return rows


def _rows(name: str, layout: Layout, segments: Segments) -> list[Row]:
    data = bytes(encode(layout, segments))
    crc32 = checksum(data)
    section = f"{SECTION}, {name}, {len(data):,} bytes"
    encodes = [_seconds(lambda: checksum(encode(layout, segments))) for _ in range(ROUNDS)]
    decodes = [_seconds(lambda: decode(layout, data, crc32=crc32, size_cap=CAP)) for _ in range(ROUNDS)]
    rows = []
    for verb, times in (("encode", encodes), ("decode", decodes)):
        rows.append(Row(section, verb, "us", spread(1e6 * time for time in times)))
        rows.append(Row(section, verb, "MB/s", spread(len(data) / 1e6 / time for time in times)))
    return rows


def _seconds(call: Callable[[], object]) -> float:
    """Mean CPU seconds of one call, over `SECONDS`: on a quiet machine they are the seconds it takes."""
    count, began = 0, own_cpu_s()
    while (passed := own_cpu_s() - began) < SECONDS:
        call()
        count += 1
    return passed / count


def _cartpole(shape: Shape) -> tuple[Layout, Segments]:
    stage = scene(w1(shape))
    player = stage.player(0)
    segments = player.play(1)
    player.close()
    return stage.layout, segments


def _images() -> tuple[Layout, Segments]:
    """A batch of noise as image environments give it: 8 segments of 64 steps."""
    rng, rows, steps = np.random.default_rng(0), 8, IMAGES // 8
    shape = (84, 84, 4)
    space = Box(shape, "uint8", 0, 255)
    outputs = {"log_prob": OutputSpec("float32", ()), "value": OutputSpec("float32", ())}
    layout = make_layout(space, Discrete(6, 0), steps=steps, outputs=outputs, state={}, info_keys=())
    segments = Segments.empty(layout, rows)
    segments.arrays["obs"][...] = rng.integers(0, 256, (rows, steps + 1, *shape), np.uint8)
    segments.arrays["length"][:] = steps
    segments.arrays["env"][:] = np.arange(rows)
    segments.arrays["episode_return"].fill(np.nan)
    segments.set_finals([])
    return layout, segments
