import io
import json
import os
import zipfile
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import gpin
from gpin.data import SourceConfig, open_source, pictures, sources
from gpin.data import io as reading

RNG = np.random.default_rng(0)


def save(path, array):
    np.save(path, array, allow_pickle=True)
    return path


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def refused(data, said, **options):
    with pytest.raises(gpin.InputError, match=said) as caught:
        open_source(data, SourceConfig(**options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def picture(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **options)
    return path.parent


# Names and paths -----------------------------------------------------------------------------------


def test_a_benchmark_is_opened_by_its_name_even_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "digits" / "a.png", np.zeros((4, 4), np.uint8))
    named, folder = open_source("digits"), open_source("./digits")
    assert (named.location, named.shape, named.kind) == ("digits", (1, 8, 8), "images")
    assert folder.shape == (1, 4, 4)
    assert os.path.isabs(folder.location)
    assert open_source(folder.location, folder.config).fingerprint() == folder.fingerprint()


def test_what_is_not_there_is_named_with_advice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("mnst", r"unknown data 'mnst': did you mean 'mnist'\? .*, or pass the path of a file")
    refused("none.npy", r"none\.npy does not exist")
    refused("a/b", r"a/b does not exist")
    refused(3, "the data must be a path, got 3")
    refused("~nobody-of-this-name/x", "cannot be opened|does not exist")
    refused("x" * 5000, "cannot be opened|unknown data")
    refused("a\0b.npy", "cannot be opened|does not exist")
    refused("a\nb.npy", r"a b\.npy does not exist")
    refused(save(tmp_path / "a\nb.npy", np.zeros(3)), r"a b\.npy holds an array of shape")
    refused(text(tmp_path / "a.csv", '"a\nb",c\n2020-01-01,x\n'), "leave it out with `exclude=a b`")
    refused(text(tmp_path / "notes.doc", "hello"), r"notes\.doc has no known format: expected \.npy")
    refused(picture(tmp_path / "one" / "a.png", np.zeros((4, 4), np.uint8)) / "a.png", "pass the folder")


@pytest.mark.parametrize(("name", "short"), [("My faces (2).npy", "My-faces-2"), ("é.npy", "é"), ("...npy", "data")])
def test_the_name_is_fit_for_a_file(tmp_path, name, short):
    if name == "...npy":
        assert sources._short(tmp_path / "(.npy") == short
    else:
        assert open_source(save(tmp_path / name, np.zeros((3, 2)))).name == short


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda f: save(f / "a.npy", np.zeros((3, 2))), {"columns": ("a",)}, "`columns` is an option of tables"),
        (lambda f: save(f / "a.npy", np.zeros((3, 2))), {"key": "a"}, r"`key` is an option of \.npz archives"),
        (lambda f: text(f / "a.csv", "a\n1\n"), {"size": (3, 3)}, "`size` is an option of folders"),
        (lambda f: text(f / "a.csv", "a\n1\n"), {"grey": True}, "`grey` is an option of folders"),
        (lambda f: picture(f / "a.png", np.zeros((4, 4), np.uint8)), {"columns": ("a",)}, "`columns` is an option"),
        (lambda f: "digits", {"grey": True}, "does not apply to the benchmark set 'digits'"),
    ],
)
def test_options_that_do_not_apply_are_refused(tmp_path, make, options, said):
    refused(make(tmp_path), said, **options)


def test_the_config_goes_through_json_and_checks_itself():
    config = SourceConfig(columns=("a", "b"), size=(3, 4))
    assert SourceConfig.parse(json.loads(config.model_dump_json()), "data") == config
    with pytest.raises(gpin.InputError, match="size"):
        SourceConfig.parse({"size": (0, 4)}, "data")
    with pytest.raises(gpin.InputError, match="columns"):
        SourceConfig.parse({"columns": ()}, "data")


# Arrays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((5, 7), "table", (7,)),
        ((5, 1), "table", (1,)),
        ((5, 4, 6), "images", (1, 4, 6)),
        ((5, 3, 4, 6), "images", (3, 4, 6)),
        ((5, 4, 6, 3), "images", (3, 4, 6)),
        ((5, 4, 6, 1), "images", (1, 4, 6)),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_arranged_and_stay_on_disk(tmp_path, shape, kind, expected, order):
    array = RNG.normal(size=shape)
    source = open_source(save(tmp_path / "a.npy", np.asarray(array, order=order)))
    assert (source.kind, source.shape) == (kind, expected)
    assert isinstance(source.values, np.memmap)
    last = len(shape) == 4 and shape[1] == 4
    assert np.array_equal(source.values, (np.moveaxis(array, -1, 1) if last else array).reshape(5, *expected))


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", ">i2", "<u4", ">i8", "<f2", ">f4", "<f8", ">f8", "longdouble"])
def test_numbers_of_all_types_are_read(tmp_path, dtype):
    array = RNG.integers(0, 2, (4, 3)).astype(dtype)
    assert np.array_equal(open_source(save(tmp_path / "a.npy", array)).values, array)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(5), r"shape \(5,\): give \(n, columns\)"),
        (np.float64(3), r"shape \(\)"),
        (np.zeros((2, 5, 6, 4)), r"shape \(2, 5, 6, 4\): .* 1 or 3 channels"),
        (np.zeros((2, 3, 4, 5, 6)), "shape"),
        (np.zeros((0, 4)), r"is empty: its array has shape \(0, 4\)"),
        (np.zeros((4, 0)), "is empty"),
        (np.zeros((0, 4, 4)), "is empty"),
        (np.zeros((3, 2), complex), "must hold numbers, .* complex128"),
        (np.array([["a"]]), "must hold numbers"),
        (np.zeros((3, 2), "M8[s]"), "must hold numbers"),
        (np.zeros(3, [("a", "f4")]), "must hold numbers"),
        (np.array([[{}]], object), "Python objects"),
    ],
)
def test_other_arrays_are_refused(tmp_path, array, said):
    assert "a.npy" in refused(save(tmp_path / "a.npy", array), said)


def test_an_archive_gives_the_array_that_is_asked_for(tmp_path):
    first, second = RNG.normal(size=(4, 3)), RNG.normal(size=(5, 2))
    np.savez_compressed(tmp_path / "a.npz", first=first, second=second)
    np.savez(tmp_path / "one.npz", first)
    assert np.array_equal(open_source(tmp_path / "a.npz", SourceConfig(key="second")).values, second)
    assert np.array_equal(open_source(tmp_path / "one.npz").values, first)
    refused(tmp_path / "a.npz", "holds 2 arrays: choose one with `key`, from first, second")
    refused(tmp_path / "a.npz", "no array 'secnd': did you mean 'second'", key="secnd")
    with zipfile.ZipFile(tmp_path / "none.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(tmp_path / "none.npz", "holds no arrays")


def header(shape, descr="<f8"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(10**9, 10**9), (2**62, 4), (3, 2), (-1, 5)])
def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path, shape):
    content = header(shape) + b"\0" * 40
    (tmp_path / "a.npy").write_bytes(content)
    refused(tmp_path / "a.npy", "its header claims shape")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", content)
    refused(tmp_path / "a.npz", "its header claims shape")


def test_an_archive_that_does_not_fit_on_the_disk_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", np.zeros((1000, 1000)))
    free = reading.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(reading.shutil, "disk_usage", lambda folder: free)
    refused(tmp_path / "a.npz", r"takes 0\.0 GiB unpacked, but .* set TMPDIR")


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("raw", [True, False])
def test_pickles_are_never_executed(tmp_path, ending, raw):
    target, bomb = tmp_path / f"a.{ending}", np.array([[_Bomb(str(tmp_path / "harm"))]], object)
    if raw:  # np.load would run the pickle, if allowed, without any array around it
        target.write_bytes(bomb.dumps())
    elif ending == "npy":
        np.save(target, bomb, allow_pickle=True)
    else:
        np.savez(target, a=bomb)
    refused(target, "damaged")
    assert not (tmp_path / "harm").exists()


# Tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_text_table_is_read_with_its_header(tmp_path, separator, ending):
    rows = [["a", "b"], ["1", "2.5"], ["3", " 4e1"]]
    source = open_source(text(tmp_path / f"a.{ending}", "\n".join(separator.join(row) for row in rows)))
    assert source.columns == ("a", "b")
    assert np.array_equal(source.values, [[1, 2.5], [3, 40]])


@pytest.mark.parametrize(
    ("content", "columns", "values"),
    [
        ("1,2\n3,4\n", ("1", "2"), [[1, 2], [3, 4]]),
        ("\ufeffa,b\r\n1,2\r\n", ("a", "b"), [[1, 2]]),
        ("\n\na, b\n\n1,2\n", ("a", "b"), [[1, 2]]),
        ('"a\nb","c,d"\n1,2\n', ("a\nb", "c,d"), [[1, 2]]),
        ("a,b\ntrue,1\nfalse,2\n", ("a", "b"), [[1, 1], [0, 2]]),
        ("x\n5\n", ("x",), [[5]]),
        ("a,b\n1,2\n99999999999999999999,3\n", ("a", "b"), [[1, 2], [1e20, 3]]),
    ],
)
def test_headers_byte_order_marks_and_quotes(tmp_path, content, columns, values):
    (tmp_path / "a.csv").write_bytes(content.encode())
    source = open_source(tmp_path / "a.csv")
    assert source.columns == columns
    assert np.array_equal(source.values, values)


def test_numbers_that_change_their_kind_late_in_a_file_are_read(tmp_path):
    rows = 300_000  # several blocks of pyarrow's
    content = "a,b\n" + "1,2\n" * rows + "1.5,2\n"
    values = open_source(text(tmp_path / "a.csv", content)).values
    assert values.shape == (rows + 1, 2)
    assert values[-1, 0] == 1.5


def test_columns_are_chosen_in_the_order_asked_for(tmp_path):
    table = pa.table({"a": [1.0, 2.0], "b": ["x", "y"], "c": [3, 4]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    text(tmp_path / "a.csv", "a,b,c\n1.0,x,3\n2.0,y,4\n")
    for file in ("a.parquet", "a.csv"):
        source = open_source(tmp_path / file, SourceConfig(columns=("c", "a")))
        assert source.columns == ("c", "a")
        assert np.array_equal(source.values, [[3, 1], [4, 2]])
        assert open_source(tmp_path / file, SourceConfig(exclude=("b", "a"))).columns == ("c",)
        refused(tmp_path / file, "no column 'cc': did you mean 'c'", exclude=("cc",))
        refused(tmp_path / file, "no columns besides those that are excluded", exclude=("a", "b", "c"))
        refused(tmp_path / file, "no column 'cc': did you mean 'c'", columns=("cc",))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,a\n1,2\n", "more than one column named 'a'"),
        (",a\n0,2\n", 'column 1 is without a name, perhaps an index: leave it out with `exclude=""`'),
        ("a,b\n1,2\n\n3\n", "line 4 has 1 cells, but the first row has 2: correct this line, which is '3'"),
        ("a,b\n1,2\n3,4\n5,Oslo\n", r"'b' holds text \(first: 'Oslo' in row 2, .*but mostly numbers: .*`kinds=b=cat"),
        ("a,b\n1,2020-01-01\n", "column 'b' holds dates or times .*2020-01-01"),
        ("a,b\n1,,\n", "line 2 has 3 cells"),
        ("a,b c\n" + "".join(f"{i},x{i}\n" for i in range(101)), "all different, which are too many .*`exclude=b c`"),
        ("1_0,2\n3,4\n", "no column '1'"),
    ],
)
def test_tables_that_cannot_be_used_are_named_in_one_line(tmp_path, content, said):
    path = text(tmp_path / "a.csv", content)
    options = {"columns": ("1",)} if content.startswith("1_0") else {}
    assert str(path) in refused(path, said, **options)


def test_parquet_tables_that_cannot_be_used_are_named(tmp_path):
    def write(**columns):
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    refused(write(a=[[1, 2], [3]]), r"column 'a' holds list<.*int64> \(first: \[1, 2\] in row 0")
    refused(write(a=pa.array([], pa.float32())), "has no rows")
    refused(write(a=[1, 2], __index_level_0__=[0, 1]), "named '__index_level_0__', an index: .*`exclude=__index")
    assert open_source(write(a=[Decimal("1.25"), Decimal(2)])).values.tolist() == [[1.25], [2.0]]
    assert open_source(write(a=pa.array([1, 2], pa.float32()))).values.dtype == np.float32


def test_text_and_missing_values_are_read(tmp_path):
    content = "a,b,c,d\n1,red,,1\n2.5,,4,0\n?,blue,NA,1\n3,red,7,0\n"
    source = open_source(text(tmp_path / "a.csv", content))
    nan = np.nan
    wanted = [[1, 1, nan, 1], [2.5, nan, 4, 0], [nan, 0, nan, 1], [3, 1, 7, 0]]
    assert np.array_equal(source.values, wanted, equal_nan=True)
    assert source.levels == (None, (("blue", "red"), False), None, None)
    chosen = open_source(tmp_path / "a.csv", SourceConfig(kinds={"c": "categorical"}))
    assert chosen.levels[2] == (("4", "7"), True)
    assert np.array_equal(chosen.values[:, 2], [nan, 0, nan, 1], equal_nan=True)
    assert chosen.fingerprint() != source.fingerprint()
    table = pa.table({"a": pa.array(["x", None, "y"]).dictionary_encode(), "b": [True, None, False], "c": [1, None, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet")
    assert np.array_equal(source.values, [[0, 1, 1], [nan, nan, nan], [1, 0, 3]], equal_nan=True)
    assert source.levels == ((("x", "y"), False), None, None)


# Pictures ------------------------------------------------------------------------------------------


def test_pictures_are_read_in_the_order_of_their_paths_and_others_left_alone(tmp_path):
    for number, name in enumerate(["b/1.png", "a/2.PNG", "a/1.bmp", "c.tif"]):
        picture(tmp_path / name, np.full((3, 4), number, np.uint8))
    picture(tmp_path / ".hidden" / "x.png", np.zeros((9, 9), np.uint8))
    picture(tmp_path / ".x.png", np.zeros((9, 9), np.uint8))
    text(tmp_path / "notes.txt", "hello")
    source = open_source(tmp_path)
    assert source.values.shape == (4, 1, 3, 4)
    assert source.values[:, 0, 0, 0].tolist() == [2, 1, 0, 3]
    assert source.names == ("a/1.bmp", "a/2.PNG", "b/1.png", "c.tif")
    before = source.fingerprint()
    (tmp_path / "c.tif").rename(tmp_path / "d.tif")
    assert open_source(tmp_path).fingerprint() == before  # a name is no data


def test_a_folder_without_pictures_is_refused(tmp_path):
    text(tmp_path / "notes.txt", "hello")
    refused(tmp_path, r"holds no pictures: expected files that end in \.png")


def test_colour_wins_and_grey_can_be_asked_for(tmp_path):
    picture(tmp_path / "a.png", np.full((4, 4), 100, np.uint8))
    picture(tmp_path / "b.png", np.broadcast_to(np.uint8([250, 0, 0]), (4, 4, 3)).copy())
    assert open_source(tmp_path).values[:, :, 0, 0].tolist() == [[100, 100, 100], [250, 0, 0]]
    grey = open_source(tmp_path, SourceConfig(grey=True)).values
    assert grey[:, :, 0, 0].tolist() == [[100], [75]]  # 0.299 × 250


def test_what_is_transparent_lies_on_black(tmp_path):
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[..., 0], pixels[..., 3] = 200, 128
    picture(tmp_path / "a.png", pixels)
    assert open_source(tmp_path).values[0, :, 0, 0].tolist() == [100, 0, 0]
    other = tmp_path / "other"
    picture(other / "a.png", np.full((4, 4, 2), [200, 0], np.uint8))
    assert open_source(other).values.max() == 0
    assert open_source(other).shape == (1, 4, 4)


def test_sixteen_bits_become_eight(tmp_path):
    values = np.array([[0, 128, 129, 257], [514, 32896, 65406, 65535]], np.uint16)
    picture(tmp_path / "a.png", values)
    assert np.array_equal(open_source(tmp_path).values[0, 0], np.rint(values / 257))
    picture(tmp_path / "b.tif", values.astype(np.float32))
    refused(tmp_path, r"b\.tif has 32 bits per pixel")


def test_mixed_sizes_need_a_size_and_are_cropped_around_the_centre(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    picture(tmp_path / "a.png", wide)
    picture(tmp_path / "b.png", np.full((20, 20, 3), 100, np.uint8))
    picture(tmp_path / "c.png", np.full((20, 20, 3), 100, np.uint8))
    refused(tmp_path, r"pictures of 2 sizes \(2 of 20×20, 1 of 10×30; height×width\): .*`size=20x20`")
    values = open_source(tmp_path, SourceConfig(size=(5, 5))).values
    assert values.shape == (3, 3, 5, 5)
    assert (values[0, :, :, 2] == 200).all()
    assert values[0].min() > 150  # what stands out has a share in the pixels at the edge
    assert (values[1] == 100).all()


def test_shrinking_does_not_alias(tmp_path):
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    picture(tmp_path / "a.png", stripes)
    inner = open_source(tmp_path, SourceConfig(size=(8, 8))).values[0, 0, :, 1:-1]
    assert np.abs(inner.astype(float) - 127.5).max() < 12


def test_a_camera_turned_on_its_side_is_put_upright(tmp_path):
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[:, 3:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter, clockwise
    picture(tmp_path / "a.png", pixels, exif=exif)
    values = open_source(tmp_path).values[0, 0]
    assert values.shape == (6, 4)
    assert (values[:3] == 0).all()
    assert (values[3:] == 255).all()


def test_pictures_that_cannot_be_used_are_named(tmp_path, monkeypatch):
    picture(tmp_path / "a.png", RNG.integers(0, 255, (40, 40), dtype=np.uint8))
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "b.png").write_bytes(content[: len(content) // 2])
    refused(tmp_path, r"b\.png is not a picture, or it is damaged")
    (tmp_path / "b.png").write_bytes(b"")
    refused(tmp_path, r"b\.png is not a picture")
    frames = [Image.new("L", (4, 4), n) for n in (0, 200)]
    (tmp_path / "b.png").unlink()
    frames[0].save(tmp_path / "b.gif", save_all=True, append_images=frames[1:])
    refused(tmp_path, r"b\.gif holds 2 pictures")
    (tmp_path / "b.gif").unlink()
    for limit in (1000, 500):  # beyond the limit Pillow warns, beyond its double it refuses
        monkeypatch.setattr(pictures.Image, "MAX_IMAGE_PIXELS", limit)
        refused(tmp_path, r"a\.png .*exceeds limit of \d+ pixels")


def test_what_does_not_fit_in_memory_goes_to_a_file_that_has_no_name(tmp_path, monkeypatch):
    for number in range(3):
        picture(tmp_path / f"{number}.png", np.full((8, 8), number, np.uint8))
    inside = open_source(tmp_path)
    monkeypatch.setattr(reading, "IN_MEMORY", 100)
    monkeypatch.setattr(reading.tempfile, "tempdir", str(tmp_path))
    outside = open_source(tmp_path)
    assert isinstance(outside.values, np.memmap)
    assert not isinstance(inside.values, np.memmap)
    assert np.array_equal(outside.values, inside.values)
    assert len(list(tmp_path.iterdir())) == 3


# Fingerprints --------------------------------------------------------------------------------------


def test_a_fingerprint_depends_on_content_not_on_path_format_or_layout(tmp_path):
    array = RNG.normal(size=(50, 3))
    np.savez_compressed(tmp_path / "b.npz", array)
    same = [
        open_source(save(tmp_path / "a.npy", array)),
        open_source(save(tmp_path / "c.npy", np.asfortranarray(array))),
        open_source(save(tmp_path / "d.npy", array.astype(">f8"))),
        open_source(tmp_path / "b.npz"),
    ]
    assert len({source.fingerprint() for source in same}) == 1
    changed = array.copy()
    changed[17, 1] = np.nextafter(changed[17, 1], 1)
    for other in (changed, array.astype(np.float32), array.reshape(25, 6), array[::-1]):
        assert open_source(save(tmp_path / "e.npy", other)).fingerprint() != same[0].fingerprint()


def test_tables_with_other_column_names_have_another_fingerprint(tmp_path):
    first, second = (open_source(text(tmp_path / f"{n}.csv", f"{n},b\n1.5,2\n")) for n in "ac")
    pyarrow.parquet.write_table(pa.table({"a": [1.5], "b": [2.0]}), tmp_path / "a.parquet")
    assert first.fingerprint() != second.fingerprint()
    assert open_source(tmp_path / "a.parquet").fingerprint() == first.fingerprint()


def test_the_fingerprint_of_large_data_is_that_of_some_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "FINGERPRINT_ALL", 1000)
    monkeypatch.setattr(sources, "FINGERPRINT_ROWS", 3)
    array = RNG.normal(size=(101, 2))
    prints = []
    for row in (None, 0, 50, 100, 1):
        changed = array.copy()
        if row is not None:
            changed[row] += 1
        prints.append(open_source(save(tmp_path / "a.npy", changed)).fingerprint())
    assert len(set(prints[:4])) == 4
    assert prints[4] == prints[0]  # between the rows that are read
