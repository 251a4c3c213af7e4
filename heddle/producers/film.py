"""Films: frames written into a file as they come, as GIF or MP4; no more than one frame is held.

It never renders. The file is there when it is whole, and not before.
"""

import contextlib
import importlib
import struct
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import numpy as np

from heddle.errors import MissingExtra, UsageError
from heddle.producers.envs_film import Frame

FORMATS = (".mp4", ".gif")
LEAST_GIF_S = 0.02
"""Browsers slow down what claims to be faster."""


class Film(Protocol):
    """A film that is being written; leaving it without an error makes it whole.

    Attributes:
        frames: so far.
    """

    frames: int

    def add(self, frame: Frame) -> None:
        """One frame more, [height, width, 3] uint8, of the size of the first. Raises UsageError, OSError."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_film(path: Path, fps: float) -> "Film":
    """A film at `path`, of the kind that its name ends with.

    Raises:
        UsageError: another kind.
        MissingExtra: what that kind needs is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{path} ends with neither {' nor '.join(FORMATS)}")
    return GifFilm(path, fps) if path.suffix.lower() == ".gif" else Mp4Film(path, fps)


def best_suffix() -> str:
    """What can be written here: .mp4 where ffmpeg is, else .gif."""
    return ".mp4" if importlib.util.find_spec("imageio_ffmpeg") is not None else ".gif"


class _Whole:
    """A file under another name until it is whole."""

    frames = 0

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._part = path.with_name(f".{path.stem}.part{path.suffix}")
        self._fps = fps
        self._size: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
            if kind is None and self.frames:
                self._part.replace(self._path)
        finally:
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)

    def _end(self) -> None:
        """Nothing comes after this."""

    def _fits(self, frame: Frame) -> bool:
        """Whether it is the first one. Raises UsageError for one of another size."""
        size = frame.shape[1], frame.shape[0]
        if self._size is not None and size != self._size:
            raise UsageError(
                f"the environment renders {size[0]} x {size[1]} now, and {self._size[0]} x {self._size[1]} before"
            )
        is_first, self._size = self._size is None, size
        return is_first


class GifFilm(_Whole):
    """A GIF that plays for ever: every frame with its own colours."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path, fps)
        self._image: Any = _library("PIL.Image", "writing a gif")
        self._gif: Any = _library("PIL.GifImagePlugin", "writing a gif")
        self._file: IO[bytes] | None = None
        self._owed_s = 0.0

    def add(self, frame: Frame) -> None:
        if self._fits(frame):
            self._file = self._part.open("wb")
            self._file.write(_gif_head(frame.shape[1], frame.shape[0]))
        assert self._file is not None
        picture = self._image.fromarray(np.ascontiguousarray(frame), "RGB").quantize(256, dither=0)
        for block in self._gif.getdata(picture, duration=self._shown_ms(), include_color_table=True):
            self._file.write(block)
        self.frames += 1

    def _shown_ms(self) -> int:
        """How long this frame is shown: hundredths of a second are all that a GIF knows, the rest is owed."""
        wanted = max(LEAST_GIF_S, 1.0 / self._fps) + self._owed_s
        hundredths = max(2, int(wanted * 100 + 0.5))
        self._owed_s = wanted - hundredths / 100
        return hundredths * 10

    def _end(self) -> None:
        if self._file is not None:
            self._file.write(b";")
            self._file.close()


class Mp4Film(_Whole):
    """An MP4 (H.264), encoded by ffmpeg in a process of its own."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path, fps)
        self._ffmpeg: Any = _library("imageio_ffmpeg", "writing an mp4")
        self._writer: Generator[None, bytes | None, None] | None = None

    def add(self, frame: Frame) -> None:
        even = np.pad(
            frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge"
        )  # H.264 wants that
        if self._fits(frame):
            size = even.shape[1], even.shape[0]
            self._writer = self._ffmpeg.write_frames(
                str(self._part), size, fps=self._fps, macro_block_size=1, ffmpeg_log_level="error"
            )
            self._writer.send(None)
        assert self._writer is not None
        self._writer.send(np.ascontiguousarray(even).tobytes())
        self.frames += 1

    def _end(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _gif_head(width: int, height: int) -> bytes:
    """Begin of a GIF without colours of its own, that begins again at its end."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0)
    return screen + b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def _library(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(what, "video") from error
