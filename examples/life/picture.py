"""A picture of the world as it is, from the topic: the living dark, and where life was, the paler the longer ago.

python examples/life/picture.py events/ --size 512 world.png
"""

from __future__ import annotations

import argparse
import struct
import zlib

import numpy as np
import world

import klamm

LIVING = (16, 42, 67)
LATELY, LONG_AGO = (255, 159, 28), (255, 250, 240)
SHADES = 15  # from just died to long ago


def png(pixels: np.ndarray, palette: list[tuple[int, int, int]]) -> bytes:
    """A PNG of 4 bits a pixel, each a number of the palette."""
    height, width = pixels.shape
    rows = np.insert(pixels[:, ::2] << 4 | pixels[:, 1::2], 0, 0, axis=1)  # each row begins with its filter: none
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0),
        b"PLTE": bytes(np.array(palette, np.uint8)),
        b"IDAT": zlib.compress(rows.astype(np.uint8).tobytes(), 9),
        b"IEND": b"",
    }
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def main() -> None:
    parser = argparse.ArgumentParser(description="A picture of the world as it is.")
    parser.add_argument("path", help="the store's directory")
    parser.add_argument("picture", help="a PNG to write")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--topic", default=world.TOPIC)
    options = parser.parse_args()
    with klamm.open(options.path, create=False) as store:
        cells, changed = world.now(store, options.size, options.topic)
    ages = np.where(changed < 0, SHADES, np.minimum(SHADES, 1 + np.log2(1 + changed.max() - changed) * 2)).astype(int)
    palette = [LIVING, *(tuple(np.linspace(LATELY, LONG_AGO, SHADES)[n].astype(int)) for n in range(SHADES))]
    with open(options.picture, "wb") as file:
        file.write(png(np.where(cells, 0, ages), palette))


if __name__ == "__main__":
    main()
