"""Arguments of `vllm:`: what is refused before the engine starts, without vLLM."""

import json
import sys
from pathlib import Path

import pytest

from ragen_bench.errors import InvalidSpec, MissingExtra, UnknownName
from ragen_bench.models.vllm_options import (
    Options,
    adapter_rank,
    engine_arguments,
    environment_of,
)
from ragen_bench.registry import make_model

GIB = 2**30


def test_a_missing_package_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtra, match=r"'vllm:.*ragen-bench\[vllm\]"):
        make_model(f"vllm:{tmp_path}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_context": "many"}, "max_context is 'many'"),
        ({"threads": -1}, "threads is -1"),
        ({"tensor_parallel_size": "2.5"}, "tensor_parallel_size is '2.5'"),
        ({"gpu_memory_utilization": "1.5"}, "at most 1"),
        ({"gpu_memory_utilization": True}, "above 0"),
        ({"kv_cache_gib": "nan"}, "kv_cache_gib is 'nan'"),
        ({"kv_cache_gib": "-1"}, "above 0"),
        ({"enforce_eager": "maybe"}, "true or false"),
        ({"dtype": "float8"}, "dtype 'float8'"),
        ({"engine_args": "[1]"}, "JSON object"),
        ({"engine_args": {"max_model_len": 9}}, "given as max_context"),
        ({"engine_args": '{"trust_remote_code": true}'}, "must stay False"),
    ],
)
def test_an_argument_out_of_range_is_refused_first(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises((InvalidSpec, UnknownName), match=message):
        make_model("vllm:nowhere/at-all/really", **arguments)


def test_a_model_needs_a_place() -> None:
    with pytest.raises(InvalidSpec, match="vllm:FOLDER"):
        make_model("vllm:")


def test_float32_and_plain_graphs_are_for_cpus() -> None:
    on_cpu = engine_arguments("m", Options(), 64, free_memory=12 * GIB)
    on_gpu = engine_arguments("m", Options(), 64, free_memory=None)
    assert (on_cpu["dtype"], on_cpu["enforce_eager"]) == ("float32", True)
    assert (on_gpu["dtype"], on_gpu["enforce_eager"]) == ("bfloat16", False)
    assert "kv_cache_memory_bytes" not in on_gpu


@pytest.mark.parametrize(("free", "gib"), [(1, 1), (12, 3), (900, 4)])
def test_a_quarter_of_free_memory_holds_keys_and_values(free: int, gib: int) -> None:
    found = engine_arguments("m", Options(), 64, free_memory=free * GIB)
    assert found["kv_cache_memory_bytes"] == gib * GIB


def test_a_cache_may_be_a_fraction_of_a_gib() -> None:
    found = engine_arguments("m", Options(kv_cache_gib=0.5), 64, free_memory=GIB)
    assert found["kv_cache_memory_bytes"] == GIB // 2


def test_what_is_asked_for_reaches_the_engine() -> None:
    options = Options(
        dtype="float16",
        batch_size=7,
        tensor_parallel_size=2,
        gpu_memory_utilization=0.5,
        enforce_eager=True,
    )
    found = engine_arguments("m", options, 64, free_memory=None)
    assert found["model"] == "m"
    assert found["dtype"] == "float16"
    assert found["max_model_len"] == 64
    assert found["max_num_seqs"] == 7
    assert found["tensor_parallel_size"] == 2
    assert found["gpu_memory_utilization"] == 0.5
    assert found["enforce_eager"] is True
    assert found["trust_remote_code"] is False


def test_an_engine_on_a_cpu_compiles_nothing_unless_asked() -> None:
    assert environment_of(Options(), 8) == {"TORCHDYNAMO_DISABLE": "1"}
    assert environment_of(Options(enforce_eager=False), 8) == {}


@pytest.mark.parametrize(
    ("options", "each"),
    [
        (Options(threads=3), "3"),
        (Options(tensor_parallel_size=2), "4"),
        (Options(tensor_parallel_size=16), "1"),
        (Options(tensor_parallel_size=2, threads=3), "3"),
    ],
)
def test_cores_are_shared_by_number(options: Options, each: str) -> None:
    found = environment_of(options, 8)
    assert found["OMP_NUM_THREADS"] == each
    assert found["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def adapter(place: Path, **config: object) -> str:
    place.joinpath("adapter_config.json").write_text(json.dumps(config))
    return str(place)


@pytest.mark.parametrize(
    ("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (512, 512)]
)
def test_an_adapter_gets_the_next_rank_that_vllm_has(
    tmp_path: Path, rank: int, room: int
) -> None:
    assert adapter_rank(adapter(tmp_path, peft_type="LORA", r=rank)) == room


def test_the_highest_rank_of_an_adapter_counts(tmp_path: Path) -> None:
    place = adapter(tmp_path, peft_type="LORA", r=4, rank_pattern={"q_proj": 20})
    assert adapter_rank(place) == 32


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3", "r": 4}, "type IA3"),
        ({"peft_type": "LORA", "r": 513}, "rank 513"),
        ({"peft_type": "LORA"}, "describes no LoRA"),
        ({"peft_type": "LORA", "r": "x"}, "describes no LoRA"),
    ],
)
def test_what_is_no_lora_adapter_is_refused(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        adapter_rank(adapter(tmp_path, **config))


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="adapter_config.json"):
        adapter_rank(str(tmp_path))
