#!/usr/bin/env bash
# Runs everything under tools/gpu on a host with two CUDA devices, each part with a limit, and prints the tables.
#
#   bash tools/gpu/run_all.sh [--connector NAME] [hop] [parity] [step] [kill] [serve] [qwen] [trace] [parts] [dbo]
#       [several] [compiled] [launch] [families] [topologies] [features] [agreement]
#
# All of these without arguments. --connector: nvlink or nccl-p2p in every part, instead of what "auto" picks.
# nvlink, killport (only when named): hops by one-sided stores beside NCCL; failures of a port without an engine.
# fp8, parityfp8 (only when named): rows as fp8 on the wire beside rows as they are, hops and tokens.
#
# serve, qwen: over HTTP, DeepSeek-V2-Lite dimensions and 256 tokens in, Qwen3-30B-A3B dimensions and 4096 tokens in.
# trace: the step table at 1 and 16 rows with profiler traces. parts: what a step of 128 and of 512 rows is made of, with
# and without overlap, from such traces. dbo: graphs with dual-batch overlap beside graphs without, agreement with native
# and decode steps. several: two attention ranks on one FFN rank. compiled: parity through torch.compile. launch: `afd
# serve` as a user runs it. families: further families and quantised experts. topologies: several ranks and processes of
# each role, on as many devices as there are. features: answers with vLLM's features. agreement: 200 prompts of a family
# that a CPU cannot serve.
#
# lost (only when named): the loss of an FFN server under load where four processes share two devices, then the same with
# tensor-parallel attention. dbolong (only when named): the steps with 512 tokens of context.
#
# four (only when named): everything that needs four devices, each of its parts also alone: fourkill, tokens and the loss
# of an FFN rank under load; four-NAME, a load of tools/gpu/shapes.py over HTTP, native and split. On fewer devices each
# says what it needs. Traces of the best and the worst row: python -m tools.gpu.bench_serve_gpu --shape NAME --parts BEST
# WORST --traces. room2: the load of two devices where KV room limits replicas.
#
# Needs vLLM and torch for CUDA in the Python that PYTHON names (default python3), or on PYTHONPATH. The packages of
# this repository need not be installed. Logs go under AFD_GPU_LOGS (default /tmp/afd-gpu); the tables also into
# tables.txt there. A part that fails does not keep the next one from running.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export AFD_GPU_LOGS=${AFD_GPU_LOGS:-/tmp/afd-gpu}
export PYTHONPATH="$PWD:$(printf '%s:' "$PWD"/packages/*/src)${PYTHONPATH:-}"
unset PYTHONDONTWRITEBYTECODE
mkdir -p "$AFD_GPU_LOGS"
connector=nccl-p2p
casts='{"inductor_compile_config": {"emulate_precision_casts": true}}'  # without it fusions round in other places
if [ "${1:-}" = --connector ]; then
    connector=$2
    export AFD_GPU_CONNECTOR=$2
    shift 2
fi
parts=("$@")
if [ ${#parts[@]} -eq 0 ]; then
    parts=(hop parity step kill serve qwen trace parts dbo several compiled launch families topologies features agreement)
fi
failed=0
part() { # name limit module arguments...
    local name=$1 limit=$2
    shift 2
    echo "=== $name ($(date -u +%H:%M:%S), at most $limit s): python -m $*"
    timeout --kill-after=20 "$limit" "$python" -m "$@" 2>&1
    local code=$?
    [ $code -eq 0 ] || { echo "=== $name ended with code $code"; failed=1; }
}
four=(fourkill four-v2 four-qwen four-v2-long four-qwen-long four-v2-balance four-qwen-balance four-qwen-room four-v2-modes
    four-qwen-modes)
every=()
for name in "${parts[@]}"; do
    if [ "$name" = four ]; then every+=("${four[@]}"); else every+=("$name"); fi
done
times=() # of steps, if they were measured in this run
[ -s "$AFD_GPU_LOGS/step.json" ] && times=(--times "$AFD_GPU_LOGS/step.json")
main() {
    for name in "${every[@]}"; do
        case $name in
        hop) part hop 240 tools.gpu.bench_hop_gpu --connector "$connector" ;;
        nvlink) part nvlink 240 tools.gpu.bench_hop_nvlink ;;
        fp8) part fp8 240 tools.gpu.bench_hop_fp8 ;;
        parityfp8) part parityfp8 300 tools.gpu.parity_fp8 ;;
        killport) part killport 120 tools.gpu.kill_port --connector "$connector" ;;
        parity) part parity 420 tools.gpu.parity ;;
        step) part step 560 tools.gpu.bench_step_gpu --eager --json "$AFD_GPU_LOGS/step.json" ;;
        kill) part kill 300 tools.gpu.kill_ffn ;;
        serve) part serve 580 tools.gpu.bench_serve_gpu "${times[@]}" ;;
        qwen) part qwen 580 tools.gpu.bench_serve_gpu --model qwen3-30b --input 4096 --concurrency 32 128 ;;
        parts) part parts 240 tools.gpu.step_parts --dbo ;;
        trace) part trace 240 tools.gpu.bench_step_gpu --rows 1 16 --rounds 2 --trace "$AFD_GPU_LOGS/traces" ;;
        dbo) part dbo 180 tools.gpu.dbo --json "$AFD_GPU_LOGS/dbo.json" ;;
        several) part several 240 tools.gpu.several ;;
        compiled) part compiled 300 tools.gpu.parity --compiled "$casts" ;;
        launch) part launch 300 tools.gpu.serve_check ;;
        families) part families 420 tools.gpu.families ;;
        topologies) part topologies 400 tools.gpu.topologies ;;
        features)
            part features 200 tools.gpu.features
            part features-graphs 200 tools.gpu.features --graphs
            ;;
        agreement) part agreement 200 tools.token_agreement --device cuda --family minimax-m2 ;;
        dbolong) part dbolong 240 tools.gpu.dbo --steps --rows 512 --rounds 1 --prompt 512 ;;
        lost)
            AFD_GPU_DEVICES=0,1,0,1 part lost 300 tools.bench_topologies --device cuda --dtype float32 --parts 2A2F 1A3F 3A1F --at-once --tokens 16
            AFD_GPU_DEVICES=0,1,1,0 part losttp 300 tools.bench_topologies --device cuda --dtype float32 --parts 1A1F-tp2 1A1F-tp2-ep2 --standby \
                --at-once --tokens 16
            ;;
        fourkill) part fourkill 590 tools.bench_topologies --device cuda --dtype float32 --parts 2A2F 3A1F 1A3F 1A1F-tp2-ep2 2A2F:dbo ;;
        four-v2*) part "$name" 590 tools.gpu.bench_serve_gpu --shape "${name#four-}" --limit 570 "${times[@]}" ;;
        four-*) part "$name" 590 tools.gpu.bench_serve_gpu --shape "${name#four-}" --limit 570 ;;
        room2) part room2 420 tools.gpu.bench_serve_gpu --shape qwen-room2 --limit 400 ;;
        *) echo "unknown part $name"; failed=1 ;;
        esac
    done
    return $failed
}
main > >(tee "$AFD_GPU_LOGS/tables.txt")
code=$?
wait
exit $code
