"""Files that come of a run's use: whole or not there, and what is in them."""

import errno
import os
import uuid
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from gpin._core.errors import InputError
from gpin.data import Scaling, open_source
from gpin.runs import outputs


def test_a_table_is_written_in_batches(tmp_path):
    batches = [{"a": np.arange(3), "b": np.full(3, 0.5, np.float32)}, {"a": np.arange(3, 5), "b": np.zeros(2, "f4")}]
    assert outputs.write_table(tmp_path / "t.parquet", batches).count == 5
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert table.to_pydict() == {"a": [0, 1, 2, 3, 4], "b": [0.5, 0.5, 0.5, 0, 0]}
    assert outputs.write_table(tmp_path / "t.csv", batches).count == 5
    assert (tmp_path / "t.csv").read_text().splitlines()[:2] == ['"a","b"', "0,0.5"]


def test_a_csv_file_of_nameless_columns_has_no_header(tmp_path):
    outputs.write_table(tmp_path / "t.csv", [{"1": np.arange(2), "2": np.arange(2)}])
    assert (tmp_path / "t.csv").read_text() == "0,0\n1,1\n"


@pytest.mark.parametrize("names", [("2019", "2020"), ("2", "1"), ("1", "2", "4"), ("1.0", "2.0"), ("nan",)])
def test_names_that_are_numbers_are_not_lost(tmp_path, names):
    columns = {name: np.arange(2) for name in names}
    with pytest.raises(InputError, match=rf"{names[0]}.* would be read as a row of data; write a \.parquet file"):
        outputs.write_table(tmp_path / "t.csv", [columns])
    assert not list(tmp_path.iterdir())
    outputs.write_table(tmp_path / "t.parquet", [columns])
    assert open_source(tmp_path / "t.parquet").columns == names
    outputs.write_table(tmp_path / "t.csv", [{"row": np.arange(2), **columns}])
    assert open_source(tmp_path / "t.csv").columns == ("row", *names)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".npy"])
def test_what_fails_on_the_way_leaves_nothing(tmp_path, ending):
    def batches():
        yield {"a": np.arange(3)}
        raise KeyboardInterrupt

    path = tmp_path / f"t{ending}"
    path.write_text("before")
    arrays = (batch["a"] for batch in batches())
    with pytest.raises(KeyboardInterrupt):
        outputs.write_array(path, arrays, 6) if ending == ".npy" else outputs.write_table(path, batches())
    assert [found.read_text() for found in tmp_path.iterdir()] == ["before"]


def test_an_array_is_written_in_batches(tmp_path):
    values = np.arange(24.0).reshape(4, 2, 3).transpose(0, 2, 1)  # not as it lies in memory
    outputs.write_array(tmp_path / "a.npy", iter([values[:3], values[3:]]), 4)
    np.save(tmp_path / "b.npy", np.ascontiguousarray(values))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), values)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@pytest.mark.parametrize("count", [2, 4])
def test_an_array_holds_as_many_instances_as_were_promised(tmp_path, count):
    with pytest.raises(AssertionError):
        outputs.write_array(tmp_path / "a.npy", iter([np.zeros((2, 3)), np.ones((1, 3))]), count)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("ending", [".parquet", ".csv", ".npy"])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch, ending):
    path = tmp_path / f"t{ending}"
    monkeypatch.setattr("uuid.uuid4", lambda: uuid.UUID(int=0))
    path.with_name(f"{path.name}.00000000.part").symlink_to("/dev/full")
    values = np.arange(1000)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        outputs.write_array(path, [values], 1000) if ending == ".npy" else outputs.write_table(path, [{"a": values}])
    assert not list(tmp_path.iterdir())


# Pictures --------------------------------------------------------------------------------------------


def pixels(content):
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("kind", "x", "levels"),
    [
        ("pixels", [-0.2, 0.0, 0.2, 1.2], [0, 0, 51, 255]),
        ("none", [-0.2, 0.0, 0.2, 1.2], [0, 0, 51, 255]),
        ("none", [0.0, 100.0, 150.0, 200.0], [0, 128, 191, 255]),
        ("standardised", [-2.0, 0.0, 1.0, 2.0], [0, 128, 191, 255]),
        ("standardised", [3.0, 3.0, 3.0, 3.0], [0, 0, 0, 0]),
    ],
)
def test_images_are_shown_in_their_range(kind, x, levels):
    images = torch.tensor(x).reshape(1, 1, 2, 2).repeat(1, 3, 1, 1)
    found = pixels(outputs.picture(images, Scaling(kind=kind)))
    assert found.shape == (64, 64, 4)
    assert found[::32, ::32, 0].flatten().tolist() == levels


def test_odd_channels_are_refused():
    with pytest.raises(InputError, match=r"2 channels.*\.npy"):
        outputs.picture(torch.zeros(1, 2, 4, 4), Scaling(kind="none"))


def test_the_data_itself_is_not_overwritten(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="it is the data itself"):
        outputs.check_output(data, "one row per instance", str(data))
    assert outputs.check_output(tmp_path / "other.csv", "one row per instance", str(data)) == ".csv"


def test_a_folder_that_is_created_is_mentioned(tmp_path):
    said = []
    for _ in range(2):
        outputs.check_output(tmp_path / "a" / "b" / "c.csv", "a table", tell=said.append)
    assert said == [f"the folder {tmp_path / 'a' / 'b'} did not exist and was created"]
    with pytest.raises(InputError, match="must end in"):
        outputs.check_output(tmp_path / "typo" / "c.txt", "a table", tell=said.append)
    assert not (tmp_path / "typo").exists()
