#!/usr/bin/env bash
# Play one model through every engine, greedily, and compare the replies turn by turn.
#
#   bash scripts/agreement.sh OUT [SMOLLM2]
#
# OUT gets the run folders; what is played already is not played again.  The board
# `smoke` with the embedded model goes through hf:, vllm:, openai: (a server of vLLM)
# and lm-eval:hf.  SMOLLM2, a folder that scripts/smollm2_folder.py made, goes through
# the first two, with two solved examples, for first replies alone.  All in float32;
# bfloat16 is reported beside it.
#
# BENCH and LM_EVAL_BENCH name the ragen-bench commands of two environments, if
# vLLM and lm-eval lie apart; PYTHON is the interpreter beside BENCH.
set -euo pipefail
out=${1:?usage: agreement.sh OUT [SMOLLM2]}
smollm2=${2:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bench=${BENCH:-ragen-bench}
lm_eval_bench=${LM_EVAL_BENCH:-$bench}
python=${PYTHON:-python}
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
tiny=$("$python" -P -c 'import ragen_bench.models as m; print(m.__path__[0] + "/tiny")')
mkdir -p "$out"

play() { # NAME COMMAND...
    local name=$1
    shift
    if [ ! -f "$out/$name/summary.json" ]; then
        echo "agreement: playing $name" >&2
        "$@" --quiet --out "$out/$name" >/dev/null || [ $? -eq 4 ]
    fi
}

# What the model's own ragen.json says; a server does not read it.
smoke=(run --board smoke --agent think_act --prompt compact --context single
    --max-tokens 128)
play tiny-hf "$bench" "${smoke[@]}" --model "hf:$tiny" --model-arg dtype=float32
play tiny-vllm "$bench" "${smoke[@]}" --model "vllm:$tiny" --model-arg dtype=float32
play tiny-vllm-bfloat16 "$bench" "${smoke[@]}" --model "vllm:$tiny" \
    --model-arg dtype=bfloat16
play tiny-hf-bfloat16 "$bench" "${smoke[@]}" --model "hf:$tiny" \
    --model-arg dtype=bfloat16
play tiny-lm-eval "$lm_eval_bench" "${smoke[@]}" --model lm-eval:hf \
    --model-arg "pretrained=$tiny" --model-arg dtype=float32 --model-arg device=cpu

if [ ! -f "$out/tiny-openai/summary.json" ]; then
    port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1])')
    echo "agreement: starting a server" >&2
    # As `vllm serve` does, which the CPU build of 0.32 cannot start.
    "$python" -m vllm.entrypoints.openai.api_server --model "$tiny" \
        --served-model-name tiny --dtype float32 --enforce-eager \
        --generation-config vllm --host 127.0.0.1 --port "$port" \
        >"$out/vllm-serve.log" 2>&1 &
    server=$!
    trap 'kill "$server" 2>/dev/null; wait "$server" || true' EXIT
    "$python" - "$port" "$server" <<'WAIT'
import os, sys, time, urllib.request

url = f"http://127.0.0.1:{sys.argv[1]}/health"
for _ in range(600):
    try:
        urllib.request.urlopen(url, timeout=1)
        sys.exit(0)
    except OSError:
        if not os.path.exists(f"/proc/{sys.argv[2]}"):
            break
        time.sleep(1)
sys.exit("agreement: the server did not start; see vllm-serve.log")
WAIT
    play tiny-openai "$bench" "${smoke[@]}" --model openai:tiny \
        --base-url "http://127.0.0.1:$port/v1"
fi

echo "## tiny on smoke"
echo
status=0
"$python" "$here/agreement.py" "$out/tiny-hf" "$out/tiny-vllm" "$out/tiny-openai" \
    "$out/tiny-lm-eval" --model "$tiny" --least 0.99 || status=1
echo
echo "## tiny on smoke in bfloat16"
echo
"$python" "$here/agreement.py" "$out/tiny-hf" "$out/tiny-hf-bfloat16" \
    "$out/tiny-vllm-bfloat16" --model "$tiny"

if [ -n "$smollm2" ]; then
    # One turn an episode: first replies are compared, and the rest costs time.
    first=(run --seeds 20 --agent think_act --shots 2 --env-arg max_turns=1
        --max-tokens 128)
    for name in Bandit FrozenLake Sokoban; do
        first+=(--env "ragen/$name-v0:1" --env "ragen/$name-v0:2")
    done
    play smollm2-hf "$bench" "${first[@]}" --model "hf:$smollm2" \
        --model-arg dtype=float32
    play smollm2-vllm "$bench" "${first[@]}" --model "vllm:$smollm2" \
        --model-arg dtype=float32
    play smollm2-vllm-bfloat16 "$bench" "${first[@]}" --model "vllm:$smollm2" \
        --model-arg dtype=bfloat16
    echo
    echo "## SmolLM2-135M-Instruct with two shots, first replies"
    echo
    "$python" "$here/agreement.py" "$out/smollm2-hf" "$out/smollm2-vllm" \
        --model "$smollm2" --first --least 0.99 || status=1
    echo
    echo "## SmolLM2-135M-Instruct in bfloat16"
    echo
    "$python" "$here/agreement.py" "$out/smollm2-hf" "$out/smollm2-vllm-bfloat16" \
        --model "$smollm2" --first
fi
exit "$status"
