"""Collecting an Nsight Systems export: what each table holds, for every schema version."""

import hashlib
import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from kvscope import tables
from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json
from kvscope.collect.collector import collect_nsys
from kvscope.collect.nsys.renames import RenamedColumns

from . import nsys_fixture as fixture
from .nsys_fixture import CAPTURE_END, VERSIONS, NsysFile, global_id

PROCESS, THREAD = global_id(100), global_id(100, 7)
NSYS_TABLES = (tables.NVTX_RANGES, tables.CUDA_API, tables.GPU_KERNELS, tables.GPU_MEMCPYS)


@pytest.fixture
def export(tmp_path: Path) -> NsysFile:
    return NsysFile(tmp_path / "trace.sqlite")


def collected(file: NsysFile, table: tables.Table) -> pd.DataFrame:
    out = file.path.parent / "out"
    collect_nsys(file.close(), out)
    return tables.read(table, out / f"{table.name}.parquet")


def test_every_schema_version_gives_the_same_tables(tmp_path: Path) -> None:
    given = {}
    for version in VERSIONS:
        file = NsysFile(tmp_path / f"{version}.sqlite", version)
        file.range("outer", 10, 90, THREAD)
        file.call(20, 30, THREAD, 1, name="cudaMemcpyAsync_v3020", returnValue=2)
        file.call(40, 50, THREAD, 2)
        file.copy(25, 35, PROCESS, 1, srcKind=1, dstKind=2, deviceId=3, contextId=4, streamId=5)
        grid = {"gridX": 8, "gridY": 2, "gridZ": 1, "blockX": 32, "blockY": 4, "blockZ": 1}
        file.kernel(60, 75, PROCESS, 2, deviceId=3, contextId=4, streamId=7, graphNodeId=9, **grid)
        account = collect_nsys(file.close(), tmp_path / version)
        assert account["export_schema_version"] == version
        given[version] = [
            tables.read(table, tmp_path / version / f"{table.name}.parquet")
            for table in NSYS_TABLES
        ]
    for frames in given.values():
        for frame, first in zip(frames, given[VERSIONS[0]], strict=True):
            pd.testing.assert_frame_equal(frame, first)
    _, api, kernels, copies = given[VERSIONS[0]]
    assert api["name"].tolist() == ["cudaMemcpyAsync_v3020", "cudaLaunchKernel_v7000"]
    assert api["return_value"].tolist() == [2, 0]
    kernel = kernels.iloc[0]
    assert (kernel["start_ns"], kernel["end_ns"]) == (60, 75)
    assert (kernel["device"], kernel["context"], kernel["stream"]) == (3, 4, 7)
    assert (kernel["name"], kernel["short_name"]) == ("void gemm<int>()", "gemm")
    assert (kernel["grid"].tolist(), kernel["block_dim"].tolist()) == ([8, 2, 1], [32, 4, 1])
    assert (kernel["pid"], kernel["tid"], kernel["graph_node_id"]) == (100, 7, 9)
    assert (kernel["api_start_ns"], kernel["api_end_ns"]) == (40, 50)
    assert kernel["nvtx_path"] == "outer"
    copy = copies.iloc[0]
    assert (copy["direction"], copy["bytes"]) == ("HtoD", 64)
    assert (copy["source_memory"], copy["destination_memory"]) == ("pinned", "device")


TOYS = Path(__file__).parents[1] / "toys"


@pytest.fixture
def no_package_yet() -> Iterator[None]:
    """What is installed is looked up again, here and once the test is over."""
    found = (plugins.names, plugins.find)
    for one in found:
        one.cache_clear()
    yield
    for one in found:
        one.cache_clear()


def with_columns_renamed(path: Path, **others: str) -> Path:
    """An export with a kernel and its call, whose table of kernels has these columns renamed."""
    file = NsysFile(path)
    file.call(40, 50, THREAD, 2)
    file.kernel(60, 75, PROCESS, 2, name="attention")
    for known, other in others.items():
        file.sql.execute(
            f'ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN "{known}" TO "{other}"'
        )
    return file.close()


def test_columns_of_another_version_are_renamed_by_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package_yet: None
) -> None:
    """The package of tests/toys says how; without it, the kernels have no start."""
    others = {"demangledName": "fullName", "start": "startNs"}
    given = with_columns_renamed(tmp_path / "other.sqlite", **others)
    with pytest.raises(BadInput, match="CUPTI_ACTIVITY_KIND_KERNEL has no column 'start'"):
        collect_nsys(given, tmp_path / "refused")
    monkeypatch.syspath_prepend(TOYS)
    plugins.names.cache_clear()
    collect_nsys(given, tmp_path / "other")
    collect_nsys(with_columns_renamed(tmp_path / "known.sqlite"), tmp_path / "known")
    other, known = (
        tables.read(tables.GPU_KERNELS, tmp_path / name / "gpu_kernels.parquet")
        for name in ("other", "known")
    )
    assert known["name"].tolist() == ["void attention<int>()"]
    pd.testing.assert_frame_equal(other, known)


def test_a_column_of_the_known_name_is_read_whatever_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package_yet: None
) -> None:
    monkeypatch.syspath_prepend(TOYS)
    file = NsysFile(tmp_path / "both.sqlite")
    file.kernel(60, 75, PROCESS, 2)
    file.sql.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN startNs DEFAULT 1")
    assert collected(file, tables.GPU_KERNELS)["start_ns"].tolist() == [60]


def test_a_package_that_renames_columns_of_an_unknown_table_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_package_yet: None
) -> None:
    monkeypatch.syspath_prepend(TOYS)
    toy_nsys = importlib.import_module("toy_nsys")
    monkeypatch.setattr(toy_nsys, "KERNELS", RenamedColumns("KERNELS", {"start": "startNs"}))
    given = with_columns_renamed(tmp_path / "known.sqlite")
    with pytest.raises(BadInput, match=r"kvscope.nsys kernels renames columns of 'KERNELS'"):
        collect_nsys(given, tmp_path / "out")


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("version", ["3.0.0", "3.24.14"])
def test_an_export_without_rows_gives_tables_without_rows(
    tmp_path: Path, version: str, lazy: bool
) -> None:
    file = NsysFile(tmp_path / "trace.sqlite", version)
    for name in () if lazy else ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"):
        file.create(name)
    account = collect_nsys(file.close(), tmp_path / "out")
    for table in NSYS_TABLES:
        assert tables.check_file(table, tmp_path / "out" / f"{table.name}.parquet") is None
        assert account["rows"][table.name] == 0
    (said,) = account["warnings"]
    assert all(table.name in said for table in NSYS_TABLES)
    assert said.count("--trace=cuda,nvtx") == 2
    assert "on a machine with an NVIDIA GPU" in said


def test_written_schemas_are_exactly_those_of_the_project(export: NsysFile) -> None:
    export.range("a", 1, 9, THREAD)
    export.call(2, 3, THREAD, 1)
    export.kernel(4, 5, PROCESS, 1)
    export.copy(4, 5, PROCESS, 1)
    collect_nsys(export.close(), export.path.parent / "out")
    for table in NSYS_TABLES:
        as_written = export.path.parent / "as_written.parquet"
        tables.write(table, table.empty(), as_written)
        found = pq.read_schema(export.path.parent / "out" / f"{table.name}.parquet")
        assert found.equals(pq.read_schema(as_written), check_metadata=True)


def test_rows_come_by_start_whatever_their_order_in_the_export(export: NsysFile) -> None:
    for start in (50, 10, 30):
        export.kernel(start, start + 5, PROCESS, start)
        export.call(start - 5, start, THREAD, start)
        export.range("r", start, start + 1, THREAD)
    collect_nsys(export.close(), export.path.parent / "out")
    for table in (tables.NVTX_RANGES, tables.CUDA_API, tables.GPU_KERNELS):
        frame = tables.read(table, export.path.parent / "out" / f"{table.name}.parquet")
        assert frame["start_ns"].is_monotonic_increasing


# --- the launch of a kernel


def test_correlation_ids_of_two_processes_are_kept_apart(export: NsysFile) -> None:
    for pid in (100, 200):
        export.range(f"of {pid}", pid, pid + 50, global_id(pid, 1))
        export.call(pid + 10, pid + 20, global_id(pid, 1), 1)
        export.kernel(500 + pid, 510 + pid, global_id(pid), 1)
    kernels = collected(export, tables.GPU_KERNELS)
    assert kernels["nvtx_path"].tolist() == ["of 100", "of 200"]
    assert kernels["api_start_ns"].tolist() == [110, 210]


def test_a_kernel_launched_before_the_window_is_kept_without_its_launch(export: NsysFile) -> None:
    export.call(20, 30, THREAD, 2)
    export.kernel(5, 15, PROCESS, 1)
    export.kernel(35, 45, PROCESS, 2)
    export.kernel(50, 60, PROCESS, None)
    export.kernel(70, 80, None, 2)
    account = collect_nsys(export.close(), export.path.parent / "out")
    kernels = tables.read(tables.GPU_KERNELS, export.path.parent / "out" / "gpu_kernels.parquet")
    assert kernels["api_start_ns"].fillna(-1).tolist() == [-1, 20, -1, -1]
    assert kernels["tid"].fillna(-1).tolist() == [-1, 7, -1, -1]
    assert kernels["nvtx_path"].isna().all()
    assert account["kernels_without_api_record"] == 3
    assert account["kernels_without_nvtx_range"] == 4


@pytest.mark.parametrize("inner_first", [True, False])
def test_of_nested_calls_with_one_key_the_outermost_is_the_launch(
    export: NsysFile, inner_first: bool
) -> None:
    inner = {"start": 21, "end": 29, "eventClass": fixture.DRIVER_CALL, "name": "cuLaunchKernel"}
    outer = {"start": 20, "end": 30, "eventClass": fixture.RUNTIME_CALL}
    for call in (inner, outer) if inner_first else (outer, inner):
        export.call(thread=THREAD, correlation=1, **call)
    export.kernel(40, 50, PROCESS, 1)
    kernels = collected(export, tables.GPU_KERNELS)
    assert len(kernels) == 1
    assert (kernels["api_start_ns"][0], kernels["api_end_ns"][0]) == (20, 30)


def test_all_kernels_of_a_graph_launch_belong_to_it(export: NsysFile) -> None:
    export.range("decode", 0, 100, THREAD)
    export.call(10, 20, THREAD, 1, name="cudaGraphLaunch_v10000")
    for node in range(3):
        export.kernel(30 + node, 31 + node, PROCESS, 1, graphNodeId=node)
    kernels = collected(export, tables.GPU_KERNELS)
    assert kernels["graph_node_id"].tolist() == [0, 1, 2]
    assert kernels["nvtx_path"].tolist() == ["decode"] * 3


def test_a_copy_of_an_unknown_kind_keeps_its_number(export: NsysFile) -> None:
    export.copy(1, 2, PROCESS, 1, copyKind=99, srcKind=None)
    copies = collected(export, tables.GPU_MEMCPYS)
    assert copies["direction"].tolist() == ["99"]
    assert copies["source_memory"].isna().all()


# --- names, domains, payloads and kinds of ranges


def test_a_name_is_the_text_or_else_the_registered_string(export: NsysFile) -> None:
    export.range("registered", 1, 9, THREAD, registered=True)
    export.range("text", 2, 8, THREAD)
    export.range("wins", 3, 7, THREAD, textId=export.string("loses"))
    export.range("", 4, 6, THREAD, text=None)
    frame = collected(export, tables.NVTX_RANGES)
    assert frame["name"].tolist() == ["registered", "text", "wins", ""]
    assert frame["path"].iloc[2] == "registered/text/wins"


def test_a_domain_is_named_per_process(export: NsysFile) -> None:
    other = global_id(200, 1)
    export.domain("vllm", 1, THREAD, start=-1926055742)
    export.domain("nccl", 1, other)
    export.range("a", 1, 2, THREAD, domainId=1)
    export.range("b", 3, 4, other, domainId=1)
    export.range("c", 5, 6, THREAD)
    export.range("d", 7, 8, THREAD, domainId=3)
    frame = collected(export, tables.NVTX_RANGES)
    assert frame["domain"].tolist() == ["vllm", "nccl", "", "domain 3"]
    assert frame["start_ns"].min() == 1


def test_a_payload_of_any_type_is_a_number(export: NsysFile) -> None:
    payloads: list[dict[str, Any]] = [
        *({"int64Value": -7}, {"uint32Value": 5}, {"doubleValue": 0.5}, {"floatValue": 0.25}),
        *({"uint64Value": -1}, {}),  # SQLite keeps 2^64 - 1 as -1
    ]
    for start, payload in enumerate(payloads):
        export.range("r", start, start + 1, THREAD, **payload)
    frame = collected(export, tables.NVTX_RANGES)
    assert frame["payload"].fillna(-99).tolist() == [-7, 5, 0.5, 0.25, 2.0**64, -99]


def test_start_end_ranges_are_listed_but_do_not_nest(export: NsysFile) -> None:
    export.range("outer", 0, 100, THREAD)
    export.range("async", 10, 90, THREAD, kind=fixture.START_END, rangeId=1)
    export.range("imported async", 11, 80, None, kind=fixture.IMPORTED_START_END)
    export.range("imported", 12, 70, THREAD, kind=fixture.IMPORTED_PUSH_POP)
    export.range("mark", 13, None, THREAD, kind=fixture.MARK)
    export.call(20, 30, THREAD, 1)
    export.kernel(40, 50, PROCESS, 1)
    out = export.path.parent / "out"
    collect_nsys(export.close(), out)
    frame = tables.read(tables.NVTX_RANGES, out / "nvtx_ranges.parquet")
    assert frame["name"].tolist() == ["outer", "async", "imported async", "imported"]
    assert frame["kind"].tolist() == ["push_pop", "start_end", "start_end", "push_pop"]
    assert frame["parent_id"].fillna(-1).tolist() == [-1, -1, -1, 0]
    assert frame["depth"].tolist() == [0, 0, 0, 1]
    kernels = tables.read(tables.GPU_KERNELS, out / "gpu_kernels.parquet")
    assert kernels["nvtx_path"].tolist() == ["outer/imported"]


@pytest.mark.parametrize("end", [None, CAPTURE_END])
def test_a_range_that_was_never_closed_lasts_to_the_capture_s_end(
    export: NsysFile, end: int | None
) -> None:
    export.range("closed", 0, CAPTURE_END - 1, THREAD)
    export.range("open", 10, end, THREAD)
    export.call(20, 30, THREAD, 1)
    export.kernel(40, 50, PROCESS, 1)
    out = export.path.parent / "out"
    account = collect_nsys(export.close(), out)
    frame = tables.read(tables.NVTX_RANGES, out / "nvtx_ranges.parquet")
    assert frame.set_index("name")["closed"].to_dict() == {"closed": True, "open": False}
    assert frame.set_index("name")["end_ns"]["open"] == CAPTURE_END
    assert account["unclosed_ranges"] == 1
    kernels = tables.read(tables.GPU_KERNELS, out / "gpu_kernels.parquet")
    assert kernels["nvtx_path"].tolist() == ["closed/open"]


def test_without_a_known_end_an_open_range_lasts_to_the_last_event(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite", capture_end=None)
    file.range("open", 10, None, THREAD)
    file.kernel(20, 777, PROCESS, 1)
    assert collected(file, tables.NVTX_RANGES)["end_ns"].tolist() == [777]


# --- repeat, step and layer


def test_kvscope_s_own_ranges_number_what_lies_within_them(export: NsysFile) -> None:
    own = export.kvscope(THREAD)
    own("run", 0, 1000)
    own("warm-up", 10, 100)
    own("forward pass", 20, 90, 0)
    own("layer", 30, 40, 5)
    own("repeat", 200, 900, 1)
    own("forward pass", 210, 400, 4)
    own("layer", 220, 300, 2)
    export.range("attention", 230, 290, THREAD)
    export.range("forward pass", 500, 600, THREAD, int64Value=77)  # another domain's
    for correlation, start in enumerate((35, 150, 240, 350, 550)):
        export.call(start, start + 5, THREAD, correlation)
        export.kernel(start + 2000, start + 2001, PROCESS, correlation)
    out = export.path.parent / "out"
    collect_nsys(export.close(), out)
    kernels = tables.read(tables.GPU_KERNELS, out / "gpu_kernels.parquet")
    numbers = kernels[["repeat", "step", "layer"]].fillna(-1).astype(int).to_numpy().tolist()
    assert numbers == [[-1, -1, -1], [-1, -1, -1], [1, 4, 2], [1, 4, -1], [1, -1, -1]]
    assert kernels["nvtx_path"][2] == "run/repeat/forward pass/layer/attention"
    frame = tables.read(tables.NVTX_RANGES, out / "nvtx_ranges.parquet").set_index("start_ns")
    assert frame["layer"].fillna(-1).to_dict() == {
        **{0: -1, 10: -1, 20: -1, 30: -1, 200: -1, 210: -1, 220: 2, 230: 2, 500: -1}
    }
    assert frame["step"][210] == 4
    assert pd.isna(frame["step"][20])


# --- what the export does not tell


def test_an_nvtx_package_too_new_is_named(export: NsysFile) -> None:
    export.domain("kvscope", 1, THREAD)
    export.range("", 5, None, THREAD, kind=fixture.DOMAIN_DESTROY, domainId=1)
    account = collect_nsys(export.close(), export.path.parent / "out")
    assert account["domains_without_ranges"] == ["kvscope"]
    empty, silent = account["warnings"]
    assert "is empty: there are NVTX events, and no range" in empty
    assert "nvtx package is too new" in silent


def test_silence_of_a_library_s_domain_is_no_warning(export: NsysFile) -> None:
    export.domain("nccl", 1, THREAD)
    export.range("a", 1, 2, THREAD)
    account = collect_nsys(export.close(), export.path.parent / "out")
    assert account["domains_without_ranges"] == ["nccl"]
    assert "domain" not in " ".join(account["warnings"])


def test_graphs_traced_whole_are_counted_and_warned_of(export: NsysFile) -> None:
    export.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=1, end=2)
    account = collect_nsys(export.close(), export.path.parent / "out")
    assert account["cuda_graphs_traced_whole"] == 1
    empty, whole = account["warnings"]
    assert "CUDA graphs were traced whole" in empty
    assert "--cuda-graph-trace=node" in whole


MESSAGES = (  # text, severity
    ("CUDA injection initialized successfully.", 1),
    ("12 events were lost.", 1),
    ("CUDA profiling might have not been started correctly.", 2),
    ("Something failed.\n\nCall stack:\n  at 0x1\n  at 0x2", 3),
    ("Something else failed.", 3),
)


def complaints(account: dict[str, Any]) -> list[str]:
    return [one for one in account["warnings"] if one.startswith("Nsight Systems")]


def test_the_profiler_s_complaints_are_one_sentence_and_a_log(export: NsysFile) -> None:
    for time, (text, severity) in enumerate(MESSAGES):
        export.insert("DIAGNOSTIC_EVENT", timestamp=time, severity=severity, text=text)
    out = export.path.parent / "out"
    account = collect_nsys(export.close(), out)
    assert complaints(account) == [
        "Nsight Systems has 4 complaints, the most severe an error: Something failed "
        "(all of them in nsys.log, beside the tables)."
    ]
    log = (out / "nsys.log").read_text()
    for text, _ in MESSAGES:
        assert all(line in log for line in text.splitlines())
    assert "nsys.log" in read_json(out / "collect.json")["files"]


@pytest.mark.parametrize("texts", [*itertools.permutations(MESSAGES, 2)])
def test_the_most_severe_complaint_is_told_whatever_the_order(
    export: NsysFile, texts: tuple[tuple[str, int], ...]
) -> None:
    for time, (text, severity) in enumerate(texts):
        export.insert("DIAGNOSTIC_EVENT", timestamp=time, severity=severity, text=text)
    (said,) = complaints(collect_nsys(export.close(), export.path.parent / "out"))
    worst = max(texts, key=lambda one: one[1] if one[1] > 1 else "lost" in one[0])
    assert worst[0].splitlines()[0].rstrip(".") in said


def test_without_complaints_there_is_no_log_and_an_earlier_one_is_removed(
    export: NsysFile,
) -> None:
    text, severity = MESSAGES[0]
    export.insert("DIAGNOSTIC_EVENT", timestamp=1, severity=severity, text=text)
    out = export.path.parent / "out"
    out.mkdir()
    (out / "nsys.log").write_text("of an earlier export")
    assert complaints(collect_nsys(export.close(), out)) == []
    assert not (out / "nsys.log").exists()


@pytest.mark.parametrize(
    ("traced", "gpu", "reason"),
    [
        (["NvtxEvents"], False, "CUDA was not traced (profile with --trace=cuda,nvtx on a machine"),
        (["NvtxEvents"], True, "CUDA was not traced (profile with --trace=cuda,nvtx)"),
        (["NvtxEvents", "Cuda"], False, "nsys lists no GPU of the machine (profile with"),
        (["NvtxEvents", "Cuda"], True, "the program used none of it"),
        ([], False, "no CUDA was captured (profile with --trace=cuda,nvtx on a machine"),
    ],
)
def test_tables_without_cuda_say_why(
    export: NsysFile, traced: list[str], gpu: bool, reason: str
) -> None:
    export.range("a", 1, 2, THREAD)
    for kind in traced:
        export.insert("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value=kind)
    if gpu:
        export.insert("TARGET_INFO_GPU", id=0, name="H100")
    (said,) = collect_nsys(export.close(), export.path.parent / "out")["warnings"]
    assert said.startswith("Tables cuda_api, gpu_kernels and gpu_memcpys are empty: ")
    assert reason in said
    assert said.count(".") == 1


def test_the_tables_that_have_rows_are_not_called_empty(export: NsysFile) -> None:
    export.range("a", 1, 2, THREAD)
    export.call(10, 20, THREAD, 1)
    (said,) = collect_nsys(export.close(), export.path.parent / "out")["warnings"]
    assert said.startswith("Tables gpu_kernels and gpu_memcpys are empty: CUDA was traced")


def test_the_account_names_its_source(export: NsysFile) -> None:
    path = export.close()
    account = collect_nsys(path, path.parent / "out")
    content = path.read_bytes()
    assert account["source"] == {
        "file": "trace.sqlite",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert account["nsys_version"] == "2024.1.1.1"
