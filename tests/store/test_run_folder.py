"""Run folders that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rcalign.errors import InputError
from rcalign.store.run_folder import read_config


def test_a_folder_around_one_run_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give a folder that 'train' wrote"):
        read_config(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"give the run inside it, '.*model'"):
        read_config(tmp_path)
