"""``hearts`` and ``sentiment``: tables and sentences from the files that people have to rows in the data root."""

from __future__ import annotations

import importlib.util
import tarfile
from pathlib import Path

import numpy as np
import pytest

from rcalign.data import loading
from rcalign.data import sentences as encoders
from rcalign.data.benchmarks import actions, hearts, sentiment
from rcalign.errors import InputError

PATIENT = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"


def tables(folder: Path, **lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    for hospital in hearts.PATIENTS:
        (folder / hearts.file_of(hospital)).write_text(lines.get(hospital, f"{PATIENT}\n{PATIENT[:-1]}3\n"))
    return folder


@pytest.mark.parametrize("name", ["hearts", "sentiment"])
def test_a_stand_in_loads_trains_nothing_and_never_passes(name: str, tmp_path: Path) -> None:
    done = actions.sample_data(name, tmp_path / "toy", each=5)
    data = loading.load(done["use"])
    assert (data.counts() == 5).all() and len(data) == done["images"]
    assert "stand-in" in data.notes[0]
    assert np.isfinite(data.content.x).all()  # type: ignore[union-attr]
    assert not actions.verify_data(name, tmp_path / "toy")["complete"]


def test_hearts_from_folder_and_file(tmp_path: Path) -> None:
    folder = tables(tmp_path / "tables", hungarian="not a table\n")
    other = tmp_path / "processed.hungarian.data.original"
    other.write_text(PATIENT.replace(",", " ").replace("233.0", "-9") + "\n")
    done = actions.prepare_data("hearts", [other, folder], tmp_path / "root")
    assert done["images"] == {"cleveland": 2, "hungarian": 1, "switzerland": 2, "va": 2}
    assert done["complete"] is False and "303 and 139 expected" in done["problems"][0]
    # files of the folder are linked: the table given by itself must not be written through the link
    assert (folder / "processed.hungarian.data").read_text() == "not a table\n"
    data = loading.load(f"hearts:root={tmp_path / 'root'}")
    assert data.classes == ("healthy", "disease") and data.counts().tolist() == [[1, 1], [1, 0], [1, 1], [1, 1]]
    with pytest.raises(InputError, match="`replace`"):
        actions.prepare_data("hearts", [folder, other], tmp_path / "root")
    severe = loading.load(f"hearts:root={tmp_path / 'root'},label=severity")
    assert severe.counts()[0].tolist() == [1, 0, 0, 1, 0] and any("Hungarian" in note for note in severe.notes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (PATIENT.replace(",2.0,150", ",0.1,150"), "restecg 0.1, but one of 0, 1, 2"),
        (PATIENT[:-1] + "0.4", "num 0.4"),
        (PATIENT[:-1] + "?", "num"),
        (PATIENT + ",1", "has 15 values"),
        (PATIENT.replace("145.0", "high"), "trestbps 'high'"),
    ],
)
def test_a_changed_table_is_refused_by_line(line: str, said: str, tmp_path: Path) -> None:
    folder = tables(tmp_path / "tables", va=f"{PATIENT}\n{line}\n")
    with pytest.raises(InputError, match=said) as found:
        actions.prepare_data("hearts", [folder], tmp_path / "root")
    assert "line 2" in str(found.value) and str(folder) in str(found.value)
    assert not (tmp_path / "root" / "hearts").exists()


def test_a_patient_is_a_function_of_the_patient_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.array([hearts._row(PATIENT, "")] * 6)[:, :-1]
    values[rng.random(values.shape) < 0.3] = np.nan
    whole = hearts.features(values, flags=True)
    alone = np.concatenate([hearts.features(row[None], flags=True) for row in values])
    assert whole.dtype == np.float32 and np.isfinite(whole).all() and np.array_equal(whole, alone)
    zero = values.copy()
    zero[:, hearts.COLUMNS.index("chol")] = 0
    missing = values.copy()
    missing[:, hearts.COLUMNS.index("chol")] = np.nan
    assert np.array_equal(hearts.features(zero, flags=True), hearts.features(missing, flags=True))
    assert np.array_equal(whole[:, :25], hearts.features(values))


def sentences(folder: Path) -> Path:
    """The package's archive, with the texts in an archive inside it."""
    inner = folder / sentiment.INNER
    with tarfile.open(inner, "w:gz") as archive:
        for file, _ in sentiment.FILES.values():
            (folder / file).write_text(
                "1_1\t0.5\tA train.\n1_2\t-0.51\tA bad train.\n2_1\t0.51\tA good train.\n3_1\t0\tA train.\n"
            )
            archive.add(folder / file, f"hutto_ICWSM_2014/{file}")
    whole = folder / "vaderSentiment-3.3.2.tar.gz"
    with tarfile.open(whole, "w:gz") as archive:
        archive.add(inner, f"vaderSentiment-3.3.2/additional_resources/{sentiment.INNER}")
    return whole


class Letters:
    """In place of the sentence encoder, which is 90 MB and slow to load: what is tested is what surrounds it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: list[str], encoder: str, progress: bool) -> np.ndarray:
        self.seen += texts
        return np.array([[len(text)] * sentiment.WIDTH for text in texts], np.float32)


def test_sentiment_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Letters()
    monkeypatch.setattr(encoders, "compute", encoder)
    monkeypatch.setattr(sentiment, "SHARD", 5)
    done = actions.prepare_data("sentiment", [sentences(tmp_path)], tmp_path / "root")
    assert done["images"] == dict.fromkeys(sentiment.FILES, 4) and not done["complete"]
    data = loading.load(f"sentiment:root={tmp_path / 'root'}")
    assert data.counts().tolist() == [[1, 2, 1]] * 4  # the cut itself is neutral
    assert len(encoder.seen) == 16  # once
    assert data.content.x[:, 0].tolist() == [8, 12, 13, 8] * 4  # type: ignore[union-attr]
    assert data.group is not None
    amazon = data.group[:4]  # 1_1, 1_2 of one review; 3_1 has the text of 1_1
    assert amazon[0] == amazon[1] == amazon[3] != amazon[2]


def test_embedding_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Letters):
        def __call__(self, texts: list[str], encoder: str, progress: bool) -> np.ndarray:
            if len(self.seen) >= 10:
                raise KeyboardInterrupt
            return super().__call__(texts, encoder, progress)

    first, second = Broken(), Letters()
    monkeypatch.setattr(sentiment, "SHARD", 5)
    monkeypatch.setattr(encoders, "compute", first)
    with pytest.raises(KeyboardInterrupt):
        actions.prepare_data("sentiment", [sentences(tmp_path)], tmp_path / "root")
    monkeypatch.setattr(encoders, "compute", second)
    assert len(loading.load(f"sentiment:root={tmp_path / 'root'}")) == 16
    assert (len(first.seen), len(second.seen)) == (10, 6)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(encoders.PACKAGES[encoders.DEFAULT]) is None, reason="the text extra is not installed"
)
def test_the_real_encoder_knows_what_is_alike(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    texts = ["A truly lovely film.", "A wonderful movie.", "The tax bill was delayed."]
    rows = [sentiment.Sentence("movies", str(n), 0, text) for n, text in enumerate(texts)]
    x = sentiment.embeddings(tmp_path / "texts", rows)
    assert np.allclose(np.linalg.norm(x, axis=1), 1, atol=1e-5)
    assert x[0] @ x[1] > 0.5 > 0.2 > x[0] @ x[2]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pip download vaderSentiment"):
        loading.load(f"sentiment:root={tmp_path}")
    with pytest.raises(InputError, match="pip download vaderSentiment"):
        actions.fetch_data("sentiment", tmp_path)
    with pytest.raises(InputError, match=r"processed\.cleveland\.data"):
        loading.load(f"hearts:root={tmp_path}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not whole"):
        actions.prepare_data("hearts", [tmp_path / "empty"], tmp_path)
