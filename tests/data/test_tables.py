"""Tables that were written for another decimal point, and columns that cannot be had."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import gpin
from gpin.data import SourceConfig, open_source


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a;b\n1,5;2,3\n", "column 'a' holds text"),
        ("a;b\n1;2\n3;-2,3\n", "column 'b' holds text"),
        ('a,b\n1,"2,3"\n', "column 'b' holds text"),
        ("1,5;2,3\n2,5;3,3\n", "the first row is 1,5;2,3"),
        ("1;2,3\n2;3,3\n", "the first row is 1;2,3"),
        ("1,5\t2,3\n2,5\t3,3\n", "the first row is 1,5 2,3"),
    ],
)
def test_a_decimal_comma_is_told_of(tmp_path, content, words):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(gpin.InputError, match="numbers must have a decimal point and no commas") as caught:
        open_source(tmp_path / "a.csv")
    assert words in str(caught.value)


def test_semicolons_inside_of_a_row_with_commas_are_no_decimal_commas(tmp_path):
    (tmp_path / "a.csv").write_text('a,"b;c"\n1,2\n')
    assert np.array_equal(open_source(tmp_path / "a.csv").values, [[1, 2]])
    (tmp_path / "b.csv").write_text("1,5\n2,3\n")
    assert np.array_equal(open_source(tmp_path / "b.csv").values, [[1, 5], [2, 3]])


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_column_that_is_asked_for_twice_is_named(tmp_path, ending):
    path, table = tmp_path / f"a{ending}", pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    pa.csv.write_csv(table, path) if ending == ".csv" else pa.parquet.write_table(table, path)
    with pytest.raises(gpin.InputError, match="column 'a' is given 2 times: name each column once"):
        open_source(path, SourceConfig(columns=("a", "b", "a")))


@pytest.mark.parametrize(
    ("content", "columns", "count"),
    [
        ("5.1,3,setosa\n4.9,3,setosa\n6,3,other\n", ("1", "2", "3"), 3),
        ("5.1,?,setosa\n4.9,3,other\n6,3,setosa\n", ("1", "2", "3"), 3),
        ("country,2019,2020\nChad,1,2\nPeru,3,4\nChad,3,4\n", ("country", "2019", "2020"), 3),
        ("label,0,1\n5,1,2\n6,3,4\n", ("label", "0", "1"), 2),
        ("a,b\na,x\nx,a\na,x\n", ("a", "b"), 3),
    ],
)
def test_a_first_row_of_numbers_and_text_is_data_if_its_text_is_repeated(tmp_path, content, columns, count):
    (tmp_path / "a.csv").write_text(content)
    source = open_source(tmp_path / "a.csv")
    assert source.columns == columns
    assert len(source.values) == count
