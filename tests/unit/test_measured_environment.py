"""Variables of the user's environment that reach a measured process, and so a capture."""

from pathlib import Path

from kvscope.plan.grid import expand
from kvscope.run.environment import measured_environment

CONFIG = Path(__file__).parents[2] / "config"


def environment(*overrides: str, **source: str) -> dict[str, str]:
    (planned,) = expand(None, list(overrides), CONFIG).experiments
    return measured_environment(planned.experiment, source)


def test_secrets_stay_outside():
    result = environment(HF_TOKEN="s3cret", AWS_SECRET_ACCESS_KEY="s3cret", MY_VAR="s3cret")
    assert "s3cret" not in result.values()


def test_variables_that_programs_need_are_passed_on():
    result = environment(PATH="/bin", HOME="/home/x")
    assert (result["PATH"], result["HOME"]) == ("/bin", "/home/x")


def test_it_knows_the_pack_that_it_is_in():
    result = environment(PACK_DIRECTORY="/packs/pack-1", PACK_EXCLUSIVE="0", PACK_SCRATCH="/tmp")
    assert {key for key in result if key.startswith("PACK_")} == {
        "PACK_DIRECTORY",
        "PACK_EXCLUSIVE",
    }


def test_threads_are_the_experiments():
    assert environment("device.threads=3", OMP_NUM_THREADS="64")["OMP_NUM_THREADS"] == "3"


def test_variables_that_vllm_requires_override_the_users():
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_V2_MODEL_RUNNER"):
        assert environment(**{name: "1"})[name] == "0"
        assert environment("device=cuda")[name] == "0"


def test_a_cpu_run_sees_no_gpu_and_a_gpu_run_the_users():
    assert environment(CUDA_VISIBLE_DEVICES="0")["CUDA_VISIBLE_DEVICES"] == ""
    assert environment("device=cuda", CUDA_VISIBLE_DEVICES="2")["CUDA_VISIBLE_DEVICES"] == "2"
