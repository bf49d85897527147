"""From a picture to the network's input: one definition for training, evaluation, prediction and exported files.

1. A file becomes pixels (``decode``): first frame, turned as its EXIF says, 16 bits cut to 8, alpha composited on
   white, RGB, all of its resolution. Pixels in memory (h, w, 3) are taken as they are.
2. Pixels are brought to ``stored_size`` x ``stored_size`` (``to_stored``; both sides, bilinear with antialiasing,
   rounded to whole grey levels), which is what the cache keeps. A run keeps the size in its configuration, so that its
   model sees a picture in the same way wherever it comes from.
3. Stored pixels are resized to the network's size in the same manner and normalised (``to_input`` in
   ``picture_input``, which needs torch; reading files does not).

``PictureToInput``, there too, is steps 2 and 3 as a network, for exported files: it computes with the whole numbers
that Pillow and torch compute with, so that its result is theirs.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
from PIL import Image, ImageOps

from rcalign.errors import InputError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # no format that would start another program
SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"))
RECIPE = 2  # part of the cache's key: raise it when decode() or to_stored() change what they return


# --- files -------------------------------------------------------------------------------------------------------


class BadImage(Exception):
    """A file that is not a whole image; its text says why, without the path."""


def decode(path: str | os.PathLike[str], size: int | None) -> np.ndarray:
    """One image file -> uint8 (size, size, 3), or (height, width, 3) with size None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large images, odd EXIF: nothing the user could do about it
            with Image.open(path, formats=FORMATS) as opened:
                opened.load()
                pixels = np.array(on_white(ImageOps.exif_transpose(opened)))
    except OSError as error:
        if error.errno is not None:  # the disk's or the permissions' fault, not the image's
            raise InputError(f"'{os.fspath(path)}' cannot be read ({error.strerror}): check the file.") from None
        raise BadImage(_reason(path, error)) from None
    except MemoryError:
        raise
    except Exception as error:  # PIL raises nearly anything on broken files
        raise BadImage(_reason(path, error)) from None
    return pixels if size is None else to_stored(pixels, size)


def check_header(path: str | os.PathLike[str]) -> None:
    """Raises BadImage if the file does not begin like an image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.open(path, formats=FORMATS).close()
    except OSError as error:
        if error.errno is not None:
            raise InputError(f"'{os.fspath(path)}' cannot be read ({error.strerror}): check the file.") from None
        raise BadImage(_reason(path, error)) from None
    except Exception as error:
        raise BadImage(_reason(path, error)) from None


def on_white(image: Image.Image) -> Image.Image:
    """Any mode -> RGB; alpha, also that of palettes, is composited on white; 16 bits are cut to their upper 8."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.clip(np.asarray(image, dtype=np.int64), 0, 65535) >> 8).astype(np.uint8))
    elif image.mode == "F":
        values = np.nan_to_num(np.asarray(image))
        scale = 255.0 if values.max(initial=0) <= 1 else 1.0
        image = Image.fromarray(np.clip(values * scale + 0.5, 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        white.alpha_composite(rgba)
        image = white
    return image.convert("RGB")


def _reason(path: str | os.PathLike[str], error: Exception) -> str:
    if os.path.getsize(path) == 0:
        return "it is empty (zero bytes)"
    if isinstance(error, Image.UnidentifiedImageError):
        return "its content is not an image"
    if isinstance(error, Image.DecompressionBombError):
        return "it has more pixels than is safe to decode"
    if "truncated" in str(error) or "Truncated" in str(error):
        return "it is cut short (truncated)"
    return f"it does not decode ({str(error).splitlines()[0] if str(error) else type(error).__name__})"


# --- pixels ------------------------------------------------------------------------------------------------------


def to_stored(pixels: np.ndarray, size: int) -> np.ndarray:
    """uint8 (h, w, 3) -> uint8 (size, size, 3), as torchvision's ``Resize((size, size))`` of a Pillow image.

    In two steps, since the order in which Pillow takes the sides, and with it the last grey level, depends on its
    version and on the picture.
    """
    height, width = pixels.shape[:2]
    if (height, width) == (size, size):
        return pixels
    wide = Image.fromarray(pixels).resize((size, height), Image.Resampling.BILINEAR)
    return np.array(wide.resize((size, size), Image.Resampling.BILINEAR))
