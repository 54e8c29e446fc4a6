"""Whatever a file holds, it is read as it is or refused in one sentence that names it; nothing else gets out."""

import io
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import gpin
from gpin.data import DataConfig, Source, SourceConfig, choose_scaling, open_source, split_and_scale

SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
ENDINGS = ("npy", "npz", "csv", "tsv", "parquet", "png", "jpg", "bmp", "tif", "gif", "webp")
PICTURES = ENDINGS[5:]


def attempt(make, named=""):
    """What is made, or None where it is refused properly: in one line, with the name of what is refused."""
    try:
        return make()
    except gpin.InputError as error:
        said = str(error)
    assert said.isprintable()
    assert named in said
    return None


def opened(content, ending, config=None):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pictures" if ending in PICTURES else "", f"data.{ending}")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        source = attempt(lambda: open_source(path.parent if ending in PICTURES else path, config), folder)
        if source is not None:
            assert source.values.dtype.kind in "biuf"
            assert source.values.ndim == (2 if source.kind == "table" else 4)
            assert len(source.values) > 0
            assert len(source.fingerprint()) == 64
        return source


def valid():
    """A good file of each format, as bytes."""
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.normal(size=12), "b": rng.integers(0, 9, 12)})
    pixels = rng.integers(0, 256, (12, 9, 3), dtype=np.uint8)
    writers = {
        "npy": lambda file: np.save(file, rng.normal(size=(12, 3))),
        "npz": lambda file: np.savez_compressed(file, a=rng.normal(size=(12, 3))),
        "csv": lambda file: pyarrow.csv.write_csv(table, file),
        "parquet": lambda file: pyarrow.parquet.write_table(table, file),
        **{name: lambda file, name=name: Image.fromarray(pixels).save(file, _pillow(name)) for name in PICTURES},
    }
    made = {}
    for ending, write in writers.items():
        file = io.BytesIO()
        write(file)
        made[ending] = file.getvalue()
    return {**made, "tsv": made["csv"].replace(b",", b"\t")}


def _pillow(ending):
    return {"jpg": "jpeg", "tif": "tiff"}.get(ending, ending)


VALID = valid()


@pytest.mark.parametrize("ending", ENDINGS)
def test_good_files_are_read(ending):
    assert opened(VALID[ending], ending) is not None


@pytest.mark.parametrize("ending", ENDINGS)
@SETTINGS
@given(content=st.binary(max_size=300))
def test_random_bytes(ending, content):
    opened(content, ending)


@pytest.mark.parametrize("ending", ENDINGS)
@SETTINGS
@given(data=st.data())
def test_good_files_that_were_cut_or_damaged(ending, data):
    good = VALID[ending]
    content = bytearray(good)
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    opened(bytes(content[: data.draw(st.integers(0, len(good)))]), ending)
    opened(bytes(content), ending)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("claimed", ENDINGS)
def test_files_that_lie_about_their_type(ending, claimed):
    source = opened(VALID[ending], claimed)
    alike = {ending, claimed} <= {"csv", "tsv"} or {ending, claimed} <= set(PICTURES)
    assert (source is not None) == (alike or ending == claimed)


@SETTINGS
@given(payload=st.sampled_from(["npy", "npz"]), protocol=st.integers(0, 5), framed=st.booleans())
def test_pickles_are_never_executed(payload, protocol, framed):
    with tempfile.TemporaryDirectory() as folder:
        harm = Path(folder, "harm")
        content = pickle.dumps(_Bomb(str(harm)), protocol)
        if framed:
            file = io.BytesIO()
            save = np.save if payload == "npy" else np.savez
            save(file, np.array([[_Bomb(str(harm))]], object))
            content = file.getvalue()
        assert opened(content, payload) is None
        assert not harm.exists()


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@SETTINGS
@given(
    header=st.fixed_dictionaries(
        {
            "descr": st.sampled_from(
                ["<f8", "|O", "|S3", "<U2", "<c16", "|V4", "<M8[s]", "<f2", "?", "nonsense", 3, None]
            ),
            "fortran_order": st.sampled_from([True, False, 2, "x"]),
            "shape": st.one_of(
                st.lists(st.integers(-2, 2**70), max_size=6).map(tuple), st.sampled_from([None, 3, ("a",), (2.0, 1)])
            ),
        }
    ),
    rest=st.binary(max_size=100),
)
def test_headers_of_arrays(header, rest):
    text = repr(header).encode() + b"\n"
    opened(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest, "npy")


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.unicode_string_dtypes(max_len=3),
    hnp.datetime64_dtypes(),
)


@SETTINGS
@given(
    array=DTYPES.flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=5))
    )
)
def test_arrays_of_any_type_and_shape(array):
    file = io.BytesIO()
    np.save(file, array)
    source = opened(file.getvalue(), "npy")
    ndim = array.ndim
    good = array.dtype.kind in "biuf" and array.size > 0
    good = good and (ndim in (2, 3) or (ndim == 4 and (array.shape[1] in (1, 3) or array.shape[3] in (1, 3))))
    assert (source is not None) == good
    if source is not None:
        assert source.values.size == array.size


CELLS = st.one_of(
    st.sampled_from(
        ["1", "2.5", "-3e5", "", "NaN", "inf", "Oslo", "2020-01-01", "true", '"q"', '"', "1e999", "0x1F", "é"]
    ),
    st.text(max_size=4),
    st.floats().map(str),
    st.integers().map(str),
)


@SETTINGS
@given(rows=st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=12), separator=st.sampled_from(",;\t"))
def test_text_tables_of_any_cells(rows, separator):
    content = "\n".join(separator.join(row) for row in rows)
    source = opened(content.encode("utf-8", "surrogatepass"), "csv")
    if source is not None:
        assert source.values.shape[1] == len(source.columns)
        for values, levels in zip(source.values.T, source.levels or [], strict=False):
            assert levels is None or set(values[~np.isnan(values)]) == set(range(len(levels.names)))


NUMBERS = st.one_of(
    st.floats(),
    st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1.0, 255.0, 256.0, 1e39, 1e151, 1.7e308, 1e-320, -1.0]),
)


@SETTINGS
@given(
    values=hnp.arrays(np.float64, st.tuples(st.integers(0, 24), st.integers(1, 3)), elements=NUMBERS),
    kind=st.sampled_from(["auto", "pixels", "standardised", "binary", "none"]),
    images=st.booleans(),
    dtype=st.sampled_from([np.float64, np.float32, np.longdouble]),
)
def test_numbers_are_scaled_to_finite_ones_or_refused(values, kind, images, dtype):
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    values = values[:, None, :, None] if images else values
    source = Source("name", "name.npy", SourceConfig(), values, "images" if images else "table")
    data = attempt(lambda: split_and_scale(source, DataConfig(scaling=kind)))
    if data is None:
        return
    assert not np.isinf(values).any()
    assert data.scaling.missing == np.isnan(values).any()
    for part in (data.train, data.validation, data.test):
        x = part[:]
        assert np.array_equal(x.isnan().numpy(), np.isnan(values[part.rows]))
        assert not x.isinf().any()
        assert x.dtype == torch.float32
    if data.scaling.kind == "standardised":
        x = data.train[:].double()
        dims = (0, 1, 2, 3) if images else 0
        largest = float(np.nanmax(np.abs(values)))
        assert (x.nanmean(dims).abs() < 1e-3 + 1e-12 * largest / min(data.scaling.scale)).all()


@SETTINGS
@given(
    rows=st.integers(10, 20),
    constant=st.lists(st.booleans(), min_size=1, max_size=4),
    value=st.floats(-1e100, 1e100),
)
def test_constant_columns_are_always_seen(rows, constant, value):
    values = np.random.default_rng(0).normal(5, 1, (rows, len(constant)))
    values[:, constant] = value
    if any(constant):
        with pytest.raises(gpin.InputError, match="is always"):
            choose_scaling(values, kind="standardised")
    else:
        assert choose_scaling(values).kind == "standardised"


@SETTINGS
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    modes=st.lists(st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]), min_size=4, max_size=4),
    size=st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9))),
    grey=st.booleans(),
)
def test_folders_of_pictures_of_any_size_and_mode(sizes, modes, size, grey):
    with tempfile.TemporaryDirectory() as folder:
        for number, ((height, width), mode) in enumerate(zip(sizes, modes, strict=False)):
            Image.new(mode, (width, height)).save(Path(folder, f"{number}.png"))
        source = attempt(lambda: open_source(folder, SourceConfig(size=size, grey=grey)), folder)
        if size is None and len(set(sizes)) > 1:
            assert source is None
        else:
            channels = 1 if grey or not {"P", "RGB", "RGBA"} & set(modes[: len(sizes)]) else 3
            assert source.values.shape == (len(sizes), channels, *(size or sizes[0]))
            assert source.values.dtype == np.uint8
