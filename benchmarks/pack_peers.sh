#!/usr/bin/env bash
# Pack the packages that the peer benchmark needs, for a GPU machine without a network. torch, transformers, peft and
# accelerate are not packed, because the machine must already have them.
#
#     benchmarks/pack_peers.sh [FOLDER OF WHEELS]        -> .peers/unsloth.tar.xz (about 20 MB)
#
# On the GPU machine (Python 3.12, x86-64, CUDA 13):
#
#     mkdir -p /tmp/peers && tar -xJf .peers/unsloth.tar.xz -C /tmp/peers && export PYTHONPATH=/tmp/peers
#
# Wheels that are already in the folder are not fetched again. Files that the benchmark does not import are left out:
# Unsloth's web studio, the tests in the wheels, the libraries of bitsandbytes except those for the CPU and CUDA 13.0,
# and all of Axolotl except its kernels and their log. torchtune needs an old torchao that has
# `torchao.dtypes.nf4tensor`. Both are in a separate folder, and only torchtune's arm adds this folder to its path. The
# CUDA libraries of this torchao are left out, because the benchmark does not use them.
set -euo pipefail
cd "$(dirname "$0")/.."

wheels=${1:-.peers/download}
mkdir -p "$wheels" .peers

python=${PYTHON:-python3}
packages=(
  unsloth==2026.10.9 unsloth_zoo==2026.10.9 trl==1.15.0 datasets==4.3.0 bitsandbytes==0.50.2 torchao==0.18.0
  diffusers==0.42.1 tyro==1.0.17 structlog==26.1.0 json5==0.17.3 nest_asyncio==1.6.0 cut_cross_entropy==25.1.1
  msgspec==0.22.0 hf_transfer==0.1.9 docstring_parser==0.18.0 shtab==1.13.0 typeguard==4.6.0 multiprocess==0.70.19
  liger_kernel==0.8.5 axolotl==0.21.0 omegaconf==2.3.0 kagglehub==1.0.3
  dill==0.4.1 pydantic==2.14.3 pydantic_core==2.50.4 annotated_types==0.8.0 typing_inspection==0.4.5
)
# Fetch the packages of a list that are not yet in the folder. There are two lists, because torchtune needs another
# version of torchao, and pip accepts only one version of a package.
fetch() {
  local package missing=()
  for package in "$@"; do
    compgen -G "$wheels/${package/==/-}-*.whl" >/dev/null || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --dest "$wheels" "${missing[@]}"
}
torchtune=(torchtune==0.6.1 torchao==0.15.0)
fetch "${packages[@]}"
fetch "${torchtune[@]}"

# This package is published only as a source distribution.
antlr=antlr4_python3_runtime-4.9.3
compgen -G "$wheels/$antlr-*.whl" >/dev/null ||
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" antlr4-python3-runtime==4.9.3

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
for package in "${packages[@]}"; do
  unzip -q -o "$wheels/${package/==/-}"-*.whl -d "$site"
done
unzip -q -o "$wheels/$antlr"-*.whl -d "$site"
for package in "${torchtune[@]}"; do
  unzip -q -o "$wheels/${package/==/-}"-*.whl -d "$site/torchtune_peer"
done
rm -rf "$site/torchtune_peer/recipes"
find "$site/torchtune_peer" -name '*.so' -delete
find "$site/axolotl" -mindepth 1 -maxdepth 1 ! -name kernels ! -name utils ! -name __init__.py -exec rm -rf {} +
find "$site/axolotl/utils" -mindepth 1 -maxdepth 1 ! -name __init__.py ! -name logging.py -exec rm -rf {} +
rm -rf "$site/studio" "$site/test" "$site/tests"
find "$site/bitsandbytes" -name 'libbitsandbytes_*' ! -name '*_cpu.so' ! -name '*_cuda130.so' -delete
tar -C "$site" -cJf .peers/unsloth.tar.xz .
ls -l .peers/unsloth.tar.xz
