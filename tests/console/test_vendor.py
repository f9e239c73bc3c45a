"""The libraries that the console ships are what their packages hold, and each comes with its licence."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.console import vendor


def test_the_client_is_the_one_that_was_built() -> None:
    for copy, original in vendor.CLIENT.items():
        assert copy.read_bytes() == original.read_bytes(), "run tests/console/vendor.py"


def test_copies_equal_the_locked_packages() -> None:
    if shutil.which("npm") is None and not os.environ.get("CI"):
        pytest.skip("there is no npm to fetch the packages with")
    copies = vendor.copies(vendor.install())
    for copy, original in copies.items():
        assert copy.read_bytes() == original.read_bytes(), f"{copy.name}: run tests/console/vendor.py"
    assert {path for path in vendor.VENDOR.rglob("*") if path.is_file()} == set(copies)


def test_every_library_has_its_licence() -> None:
    for folder in vendor.VENDOR.iterdir():
        if folder.name != "iotsphere":  # our own: the project's licence
            assert len((folder / "LICENSE.txt").read_text()) > 1_000, folder.name


def test_pictures_for_the_documents_are_small() -> None:
    pictures = sorted((vendor.ROOT / "docs" / "pictures").glob("console-*.png"))
    assert len(pictures) == 9
    assert {picture.name: size for picture in pictures if (size := picture.stat().st_size) > 200_000} == {}
