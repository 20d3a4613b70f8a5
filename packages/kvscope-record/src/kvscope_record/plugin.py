"""vLLM's plugin entry point of the recorder: active where KVSCOPE_RECORD names a directory."""

import os
from dataclasses import replace
from functools import partial
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from kvscope.api.errors import KvscopeError, reason_of
from kvscope.api.recording import marks
from kvscope.api.servers import servers, versions
from kvscope_record.ending import at_end
from kvscope_record.facts import facts_of
from kvscope_record.options import DIRECTORY, RecordOptions
from kvscope_record.recorder import ServerRecorder
from kvscope_record.writer import LOG, Writer


def register() -> None:
    """Have every scheduler that vLLM makes in this process recorded; safe to call repeatedly."""
    if not os.environ.get(DIRECTORY):
        return
    version = versions.imported()
    if why := versions.unless_recorded(version):
        LOG.error("kvscope records nothing: %s", why)
        return
    servers.on_construction(partial(begin, vllm_version=version))


def begin(scheduler: Any, vllm_version: str) -> None:
    """Record a scheduler, if the environment asks for it.

    If that is not possible, one sentence in the server's log says why.
    """
    try:
        options = RecordOptions.of_environment()
        if options is None:
            return
        parallel = scheduler.vllm_config.parallel_config
        directory = directory_of_rank(options.directory, parallel)
        directory.mkdir(parents=True, exist_ok=True)
        facts = facts_of(scheduler, vllm_version)
        writer = Writer(replace(options, directory=directory))
        at_end(writer.close)
        ServerRecorder(writer, facts).observe(scheduler, _marks(options, facts))
    except KvscopeError as error:
        LOG.error("kvscope records nothing: %s", error)
    except OSError as error:
        place = error.filename or os.environ[DIRECTORY]  # what is written has no name
        LOG.error("kvscope records nothing: %s: %s", place, reason_of(error))
    except Exception as error:  # whatever it is, it is not the server's
        LOG.error("kvscope records nothing: %s: %s", type(error).__name__, error)
    else:
        LOG.info("kvscope records into %s", directory)


def _marks(options: RecordOptions, facts: dict[str, Any]) -> marks.Marks:
    """NVTX ranges of the passes, where they are asked for and passes do not overlap."""
    if not options.ranges:
        return marks.Marks()
    if facts["async_scheduling"] or facts["pipeline_parallel"] > 1:
        LOG.warning("kvscope: passes overlap, so they are no NVTX ranges")
        return marks.Marks()
    return marks.NvtxMarks()


def directory_of_rank(directory: Path, parallel: Any) -> Path:
    """Directory of a scheduler's recording: with data parallelism, one for each rank.

    vLLM tells engines of dense models nothing of the others but the name of their process.
    """
    several = parallel.data_parallel_size > 1 or current_process().name.startswith("EngineCore_DP")
    return directory / f"rank{parallel.data_parallel_index}" if several else directory
