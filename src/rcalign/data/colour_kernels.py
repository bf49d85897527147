"""The colour operations of ``augment`` compiled by numba, for images on a CPU: the same bits in less time.

torch passes over memory once for each of some fifty small operations. Here a few thousand pixels go through all of them
while they are in the processor's first cache.

Every rounding is that of torch's kernels for AVX2 and AVX512: where torch multiplies and adds in one instruction,
``fma`` does too; everywhere else both are rounded, since numba contracts nothing of its own accord. That is why
constants and operations are in the order of ``augment``'s. They are written out again and not imported: the machine
code kept on disk is renewed when this file changes, and not when another does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcalign.compiled import compiled, fma, instructions

CODES = {"brightness": 0, "contrast": 1, "saturation": 2, "hue": 3}
CHUNK = 2048  # pixels: three planes of float32 take 24 KiB, which the first cache of most processors holds

_ZERO, _HALF, _ONE, _TOP = np.float32(0), np.float32(0.5), np.float32(1), np.float32(255)
_TWO, _THREE, _FOUR, _SIX, _TWELVE = np.float32(2), np.float32(3), np.float32(4), np.float32(6), np.float32(12)
_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_SIXTH, _TINY = np.float32(1 / 6), np.float32(1e-9)
_TO_GREEN, _TO_BLUE = np.uintp(1), np.uintp(2)

_Array = np.ndarray
_Number = Any  # np.float32


# --- operations on numbers ---------------------------------------------------------------------------------------


@instructions
def _clamp(builder: Any, value: Any, low: Any, high: Any) -> Any:
    """``value`` cut to the range. Two selections become one instruction each, two branches become four."""
    value = builder.select(builder.fcmp_ordered("<", value, low), low, value)
    return builder.select(builder.fcmp_ordered(">", value, high), high, value)


@compiled()
def _luma(red: _Number, green: _Number, blue: _Number) -> _Number:
    return fma(blue, _BLUE, fma(green, _GREEN, red * _RED))


@compiled()
def _lerp(start: _Number, end: _Number, weight: _Number) -> _Number:
    """As torch does it: from the nearer end."""
    if abs(weight) < _HALF:
        return fma(weight, end - start, start)
    return fma(weight - _ONE, end - start, end)


@compiled()
def _ramp(hue: _Number) -> _Number:
    return _clamp(abs(hue) - _ONE, _ZERO, _ONE)


# --- operations on a chunk: r, g, b are float32 (pixels,), changed in place --------------------------------------


@compiled()
def _brightness(r: _Array, g: _Array, b: _Array, factor: _Number) -> None:
    for k in range(len(r)):
        r[k] = _clamp(r[k] * factor, _ZERO, _TOP)
        g[k] = _clamp(g[k] * factor, _ZERO, _TOP)
        b[k] = _clamp(b[k] * factor, _ZERO, _TOP)


@compiled()
def _contrast(r: _Array, g: _Array, b: _Array, factor: _Number, shift: _Number) -> None:
    for k in range(len(r)):
        r[k] = _clamp(r[k] * factor + shift, _ZERO, _TOP)
        g[k] = _clamp(g[k] * factor + shift, _ZERO, _TOP)
        b[k] = _clamp(b[k] * factor + shift, _ZERO, _TOP)


@compiled()
def _saturation(r: _Array, g: _Array, b: _Array, factor: _Number) -> None:
    for k in range(len(r)):
        grey = _luma(r[k], g[k], b[k])
        r[k] = _clamp(_lerp(grey, r[k], factor), _ZERO, _TOP)
        g[k] = _clamp(_lerp(grey, g[k], factor), _ZERO, _TOP)
        b[k] = _clamp(_lerp(grey, b[k], factor), _ZERO, _TOP)


@compiled()
def _hue(r: _Array, g: _Array, b: _Array, factor: _Number) -> None:
    """``augment.adjust_hue``, where it is explained, step by step."""
    turn = _SIX * factor
    for k in range(len(r)):
        red, green, blue = r[k], g[k], b[k]
        first = _ONE if green < blue else _ZERO
        high = green if green > blue else blue
        low = green if green < blue else blue
        second = _ONE if red < high else _ZERO
        value = red if red > high else high
        middle = red if red < high else high
        least = middle if middle < low else low
        chroma = value - least
        hue = (middle - low) / (chroma + _TINY)
        hue = fma(second, first * _TWELVE - _TWO, hue)
        hue = abs(fma(first, -_SIX, hue)) + turn
        hue = fma(np.floor(hue * _SIXTH), -_SIX, hue)
        r[k] = fma(chroma, _ramp(hue - _THREE), least)
        g[k] = fma(-chroma, _ramp(hue - _TWO), value)
        b[k] = fma(-chroma, _ramp(hue - _FOUR), value)


@compiled()
def _grey(r: _Array, g: _Array, b: _Array) -> None:
    for k in range(len(r)):
        grey = _luma(r[k], g[k], b[k])
        r[k], g[k], b[k] = grey, grey, grey


@compiled()
def _change(r: _Array, g: _Array, b: _Array, operations: _Array, factors: _Array, shift: _Number) -> None:
    """All operations in order. operations: their codes. factors: (4,), by code. shift: what contrast adds."""
    for code in operations:
        if code == 0:
            _brightness(r, g, b, factors[0])
        elif code == 1:
            _contrast(r, g, b, factors[1], shift)
        elif code == 2:
            _saturation(r, g, b, factors[2])
        else:
            _hue(r, g, b, factors[3])


# --- between pixels and planes -----------------------------------------------------------------------------------
# Pixels are indexed by 3 * k and not in a third dimension: only so does the compiler know their distance and use vector
# instructions. Unsigned positions spare the check for negative ones, which would keep it from that as well.


@compiled()
def _split(pixels: _Array, mirrored: bool, r: _Array, g: _Array, b: _Array) -> None:
    """One line of pixels, (3 * width,), to three planes, (width,) each."""
    if mirrored:
        for k in range(len(r)):
            from_end = np.uintp(3 * (len(r) - 1 - k))
            r[k] = pixels[from_end]
            g[k] = pixels[from_end + _TO_GREEN]
            b[k] = pixels[from_end + _TO_BLUE]
    else:
        for k in range(len(r)):
            r[k] = pixels[3 * k]
            g[k] = pixels[3 * k + 1]
            b[k] = pixels[3 * k + 2]


@compiled()
def _join(r: _Array, g: _Array, b: _Array, scale: _Array, shift: _Array, out: _Array) -> None:
    """Three planes, (pixels,) each, to pixels, (3 * pixels,), normalised."""
    red_scale, green_scale, blue_scale = scale[0], scale[1], scale[2]
    red_shift, green_shift, blue_shift = shift[0], shift[1], shift[2]
    for k in range(len(r)):
        out[3 * k] = r[k] * red_scale + red_shift
        out[3 * k + 1] = g[k] * green_scale + green_shift
        out[3 * k + 2] = b[k] * blue_scale + blue_shift


# --- what augment calls ------------------------------------------------------------------------------------------


@compiled()
def to_planes(pixels: _Array, mirrored: bool, operations: _Array, factors: _Array, planes: _Array, i: int) -> None:
    """Writes an image to ``planes[:, i]``, mirrored if wanted, and changes its colours there.

    pixels: uint8 (height, 3 * width). operations: int64, codes, without contrast's. factors: float32 (4,), by code.
    planes: float32 (3, n, height * width).
    """
    height, width = pixels.shape[0], pixels.shape[1] // 3
    lines = max(1, CHUNK // width)
    for top in range(0, height, lines):
        bottom = min(top + lines, height)
        for y in range(top, bottom):
            line = slice(y * width, (y + 1) * width)
            _split(pixels[y], mirrored, planes[0, i, line], planes[1, i, line], planes[2, i, line])
        chunk = slice(top * width, bottom * width)
        _change(planes[0, i, chunk], planes[1, i, chunk], planes[2, i, chunk], operations, factors, _ZERO)


@compiled()
def to_inputs(
    planes: _Array,
    means: _Array,
    operations: _Array,
    factors: _Array,
    grey: _Array,
    scale: _Array,
    shift: _Array,
    out: _Array,
) -> None:
    """Changes the colours of n images and writes them to ``out``, normalised.

    planes: float32 (3, n, pixels), overwritten. means: float32 (3, n), of the planes. operations: int64, codes.
    factors: float32 (n, 4), by code. grey: bool (n,), which images lose their colours in the end. scale, shift:
    float32 (3,). out: float32 (n, 3 * pixels).
    """
    pixels = planes.shape[2]
    for i in range(planes.shape[1]):
        mean = _RED * means[0, i] + _GREEN * means[1, i] + _BLUE * means[2, i]
        contrast = mean * (_ONE - factors[i, 1])
        for start in range(0, pixels, CHUNK):
            stop = min(start + CHUNK, pixels)
            r, g, b = planes[0, i, start:stop], planes[1, i, start:stop], planes[2, i, start:stop]
            _change(r, g, b, operations, factors[i], contrast)
            if grey[i]:
                _grey(r, g, b)
            _join(r, g, b, scale, shift, out[i, 3 * start : 3 * stop])
