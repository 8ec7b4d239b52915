"""Build glyphs.xz, the outlines of letters and digits in open fonts, and the folder of the fonts' licenses.

    python -m train.data.build.glyphs FOLDER

FOLDER holds Debian packages of fonts, each unpacked with `dpkg -x PACKAGE.deb FOLDER/PACKAGE`. Curves become polygons
within 1/2000 em of them, with integer coordinates in units of 1/2000 em. This needs fonttools.
"""

import argparse
import hashlib
import json
import lzma
import re
from pathlib import Path

import numpy as np
from fontTools.pens.basePen import BasePen
from fontTools.ttLib import TTFont

from train.data.images.glyphs import CHARACTERS, EM, LICENSES, OUTLINES

TRAIN = {
    "fonts-allerta": ["allerta_medium.otf"],
    "fonts-anonymous-pro": ["Anonymous Pro.ttf", "Anonymous Pro B.ttf"],
    "fonts-arapey": ["Arapey-Regular.otf", "Arapey-Black.otf"],
    "fonts-averia-sans-gwf": ["AveriaSansGWF-Regular.ttf", "AveriaSansGWF-BoldItalic.ttf"],
    "fonts-cabin": ["Cabin-Regular.otf", "Cabin-BoldItalic.otf"],
    "fonts-cardo": ["Cardo104s.ttf", "Cardoi99.ttf"],
    "fonts-comfortaa": ["Comfortaa-Regular.ttf", "Comfortaa-Bold.ttf"],
    "fonts-comic-neue": ["ComicNeue-Regular.otf", "ComicNeue-BoldItalic.otf"],
    "fonts-courier-prime": ["Courier Prime.otf", "Courier Prime Bold Italic.otf"],
    "fonts-crosextra-caladea": ["Caladea-Regular.ttf", "Caladea-Bold.ttf"],
    "fonts-crosextra-carlito": ["Carlito-Regular.ttf", "Carlito-BoldItalic.ttf"],
    "fonts-dancingscript": ["DancingScript-Bold.otf"],
    "fonts-dejavu-core": ["DejaVuSans.ttf", "DejaVuSerif-Bold.ttf"],
    "fonts-dosis": ["Dosis-Light.otf", "Dosis-Bold.otf"],
    "fonts-fantasque-sans": ["FantasqueSansMono-Regular.otf", "FantasqueSansMono-BoldItalic.otf"],
    "fonts-fanwood": ["FanwoodText.otf", "FanwoodText-Italic.otf"],
    "fonts-firacode": ["FiraCode-Regular.ttf", "FiraCode-Bold.ttf"],
    "fonts-go": ["Go-Medium.ttf", "Go-Mono-Italic.ttf"],
    "fonts-hack": ["Hack-Regular.ttf", "Hack-BoldItalic.ttf"],
    "fonts-junicode": ["JunicodeTwoBeta-Regular.otf", "JunicodeTwoBeta-CondensedLight.otf"],
    "fonts-karla": ["Karla-Regular.otf", "Karla-ExtraBoldItalic.otf"],
    "fonts-lato": ["Lato-Light.ttf", "Lato-BlackItalic.ttf"],
    "fonts-league-spartan": ["LeagueSpartan-Light.otf", "LeagueSpartan-Bold.otf"],
    "fonts-liberation2": ["LiberationSans-Regular.ttf", "LiberationSerif-BoldItalic.ttf"],
    "fonts-lobster": ["lobster.otf"],
    "fonts-manrope": ["Manrope-Regular.ttf", "Manrope-ExtraBold.ttf"],
    "fonts-oldstandard": ["OldStandard-Regular.ttf", "OldStandard-Italic.ttf"],
    "fonts-open-sans": ["OpenSans-CondLight.ttf", "OpenSans-ExtraBoldItalic.ttf"],
    "fonts-opendin": ["OSP-DIN.ttf"],
    "fonts-quattrocento": ["Quattrocento-Regular.otf"],
    "fonts-roboto-slab": ["RobotoSlab-Light.otf", "RobotoSlab-Bold.otf"],
    "fonts-sil-andika": ["Andika-Regular.ttf", "Andika-BoldItalic.ttf"],
    "fonts-stix": ["STIXGeneral-Regular.otf", "STIXGeneral-BoldItalic.otf"],
    "fonts-yusei-magic": ["YuseiMagic-Regular.ttf"],
}
TEST = {
    "fonts-bebas-neue": ["BebasNeue-Book.otf"],
    "fonts-cantarell": ["Cantarell-Regular.otf", "Cantarell-ExtraBold.otf"],
    "fonts-goudybookletter": ["GoudyBookletter1911.otf"],
    "fonts-inconsolata": ["Inconsolata.otf"],
    "fonts-jetbrains-mono": ["JetBrainsMono-Light.ttf", "JetBrainsMono-BoldItalic.ttf"],
    "fonts-jura": ["Jura-Medium.otf"],
    "fonts-kaushanscript": ["KaushanScript-Regular.otf"],
    "fonts-lobstertwo": ["LobsterTwo-Regular.otf"],
    "fonts-national-park": ["NationalPark-Regular.otf"],
    "fonts-play": ["Play-Regular.ttf", "Play-Bold.ttf"],
    "fonts-quicksand": ["Quicksand-Light.ttf", "Quicksand-Bold.ttf"],
    "fonts-routed-gothic": ["routed-gothic-half-italic.ttf"],
    "fonts-sil-gentium-basic": ["GenBasR.ttf", "GenBkBasBI.ttf"],
    "fonts-vollkorn": ["Vollkorn-Regular.ttf", "Vollkorn-Black.ttf"],
    "fonts-yanone-kaffeesatz": ["YanoneKaffeesatz-Regular.otf"],
}
"""Every font family is in one split only, so no test image has a design from the training images."""


class Polygons(BasePen):
    """A pen that collects closed polygons; curves are flattened to within half a unit."""

    def __init__(self, glyphs: object, scale: float) -> None:
        super().__init__(glyphs)
        self.scale, self.polygons = scale, []

    def _moveTo(self, point: tuple[float, float]) -> None:
        self.polygons.append([self._unit(point)])

    def _lineTo(self, point: tuple[float, float]) -> None:
        self.polygons[-1].append(self._unit(point))

    def _curveToOne(self, *points: tuple[float, float]) -> None:
        corners = np.array([self.polygons[-1][-1], *map(self._unit, points)])
        bend = np.abs(np.diff(corners, 2, axis=0)).sum(axis=1).max()
        t = np.linspace(0, 1, int(np.ceil(np.sqrt(0.75 * bend / 0.5))) + 1)[1:, None]
        weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
        self.polygons[-1] += list(weights @ corners)

    def _closePath(self) -> None:
        pass

    _endPath = _closePath

    def _unit(self, point: tuple[float, float]) -> np.ndarray:
        return np.asarray(point, float) * self.scale


def outlines(path: Path) -> list[list[np.ndarray]]:
    """Return the polygons of every character of CHARACTERS, int16."""
    font = TTFont(path)
    glyphs, names, head = font.getGlyphSet(), font.getBestCmap() or {}, font["head"]
    polygons = []
    for character in CHARACTERS:
        pen = Polygons(glyphs, EM / head.unitsPerEm)  # pyright: ignore[reportAttributeAccessIssue]
        glyphs[names[ord(character)]].draw(pen)
        polygons.append([np.rint(polygon).astype(np.int16) for polygon in pen.polygons if len(polygon) > 2])
    return polygons


def payload(folder: Path) -> bytes:
    """Return the content of glyphs.xz: one line of JSON, then the points of all polygons as int16 differences."""
    heads, points = [], []
    for split, packages in (("train", TRAIN), ("test", TEST)):
        for package, files in packages.items():
            for file in files:
                path = min((folder / package).rglob(file))
                glyphs = outlines(path)
                lengths = [[len(polygon) for polygon in glyph] for glyph in glyphs]
                heads.append({"split": split, "package": package, "file": file, "lengths": lengths})
                points += [polygon for glyph in glyphs for polygon in glyph]
    deltas = np.diff(np.concatenate(points), axis=0, prepend=np.zeros((1, 2), np.int16))
    return json.dumps(heads, separators=(",", ":")).encode() + b"\n" + deltas.astype("<i2").T.tobytes()


def main() -> None:
    """Write glyphs.xz and the licenses into train/data and print the digest of the outlines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    content = payload(folder)
    OUTLINES.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    LICENSES.mkdir(exist_ok=True)
    for package in {**TRAIN, **TEST}:
        text = (folder / package / "usr/share/doc" / package / "copyright").read_text(encoding="utf-8")
        (LICENSES / f"{package}.txt").write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")
    print(f"{OUTLINES}: {OUTLINES.stat().st_size} bytes, sha256 of the content {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
