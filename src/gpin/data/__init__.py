"""Reading, splitting, scaling and batching of data: benchmark sets, arrays, tables and pictures."""

from gpin.data.batches import Batches, Conditioned, hold_out
from gpin.data.benchmarks import BENCHMARKS, Benchmark, Images, data_folder, load_benchmark
from gpin.data.fetch import FILES, FileCheck, RemoteFile, check, fetch, where
from gpin.data.inventory import check_benchmark, list_benchmarks
from gpin.data.scaling import Scaling, channel_axis, check_values, choose_scaling
from gpin.data.sets import DataConfig, DataSet, Rows, as_model_data, split_and_scale
from gpin.data.sources import FORMATS, Format, Source, SourceConfig, applicable_options, open_source
from gpin.data.splits import Parts, SplitRows, split, split_rows

__all__ = [
    "BENCHMARKS",
    "FILES",
    "FORMATS",
    "Batches",
    "Benchmark",
    "Conditioned",
    "DataConfig",
    "DataSet",
    "FileCheck",
    "Format",
    "Images",
    "Parts",
    "RemoteFile",
    "Rows",
    "Scaling",
    "Source",
    "SourceConfig",
    "SplitRows",
    "applicable_options",
    "as_model_data",
    "channel_axis",
    "check",
    "check_benchmark",
    "check_values",
    "choose_scaling",
    "data_folder",
    "fetch",
    "hold_out",
    "list_benchmarks",
    "load_benchmark",
    "open_source",
    "split",
    "split_and_scale",
    "split_rows",
    "where",
]
