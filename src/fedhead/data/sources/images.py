"""Decoding of image files: known formats only, of one size, as bytes.

Files are untrusted: only PNG, JPEG and WebP are opened, since Pillow starts programs for some other formats, and images
with too many pixels are refused before they are decoded.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.special_files import refuse_special

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 1 << 26  # maximum pixels of one image
SIZE = Annotated[int, AtLeast(1), AtMost(8192)]  # height and width of resized images
_GRAY = ("1", "L", "LA")
_WIDE = ("I;16", "I")  # Pillow's modes for 16 bits per pixel, the widest of PNG


class Source(NamedTuple):
    """Encoded image."""

    name: str  # name in error messages
    data: Path | bytes


def decode(
    sources: Sequence[Source],
    size: int | None = None,
    channels: int | None = None,
) -> NDArray[np.uint8]:
    """Decode images to one array.

    Args:
        sources: The images.
        size: Resizes them to size × size; without it all must have the same size.
        channels: 1 or 3; by default 1 if all images are gray.

    Returns:
        Images, [N, channels, height, width].

    Raises:
        BadInput: If an image can't be read, is too large, or differs from the others in size.
    """
    if size is not None:
        check("size", size, SIZE)
    shape, gray = _survey(sources, size)
    channels = channels or (1 if gray else 3)
    try:
        x = np.empty((len(sources), channels, *shape), np.uint8)
    except MemoryError:
        raise BadInput(f"{len(sources)} images of {shape[1]}x{shape[0]} do not fit into memory: give a size") from None
    for i, source in enumerate(sources):
        with _opened(source) as picture:
            pixels = _pixels(picture, size, channels)
        x[i] = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return x


def _survey(sources: Sequence[Source], size: int | None) -> tuple[tuple[int, int], bool]:
    """Return the height and width of all images, and whether all are gray; only the headers are read."""
    first: tuple[int, int] | None = None
    gray = True
    for source in sources:
        with _opened(source) as picture:
            width, height = picture.size
            if size is None and first not in (None, (height, width)):
                assert first is not None
                raise BadInput(
                    f"{source.name}: an image of {width}x{height} among others of {first[1]}x{first[0]}; give a size "
                    "(size=64, in a recipe size: 64) to resize all images to"
                )
            first = first or (height, width)
            gray = gray and picture.mode in _GRAY
    assert first is not None
    return (size, size) if size else first, gray


@contextmanager
def _opened(source: Source) -> Iterator[Image]:
    """Open an image; any problem is raised as `BadInput`."""
    from PIL import Image, UnidentifiedImageError

    data = source.data
    if isinstance(data, Path):
        refuse_special(data)
    try:
        # read into memory first: a damaged file may otherwise make Pillow allocate up to 4 GiB
        file = io.BytesIO(data.read_bytes() if isinstance(data, Path) else data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # MAX_PIXELS is a lower limit
            with Image.open(file, formats=FORMATS) as picture:
                width, height = picture.size
                large = f"{source.name}: an image of {width}x{height}, the limit is {MAX_PIXELS:,} pixels"
                require(width * height <= MAX_PIXELS, f"{large}; resize it first")
                require(picture.mode not in _WIDE, f"{source.name}: 16 bits per pixel; scale it to 8 bits first")
                yield picture
    except BadInput:
        raise
    except Image.DecompressionBombError:
        raise BadInput(f"{source.name}: an image of more than {MAX_PIXELS:,} pixels; resize it first") from None
    except UnidentifiedImageError:
        raise BadInput(f"{source.name}: not a readable image of the formats {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # raised by Pillow for damaged files
        raise BadInput(f"{source.name}: not a readable image ({error}); delete it or fetch it again") from None


def _pixels(picture: Image, size: int | None, channels: int) -> NDArray[np.uint8]:
    from PIL import Image

    converted = picture.convert("L" if channels == 1 else "RGB")
    if size and converted.size != (size, size):
        converted = converted.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(converted)
