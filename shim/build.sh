#!/bin/sh
# shim/build.sh OUT [x86_64|aarch64]: libfalcon_shim.so and falcon-launch for any glibc image, into OUT.
# Needs cmake, ninja and Python with ziglang (FALCON_PYTHON, default python3).
set -eu
# zig builds its C library with a thousand files open; dash and bash both know these options.
# shellcheck disable=SC3045
ulimit -n "$(ulimit -Hn)"
here=$(cd "$(dirname "$0")" && pwd)
out=$1
arch=${2:-x86_64}
work="$out/.build-$arch"
mkdir -p "$out"
cmake -S "$here" -B "$work" -G Ninja -Wno-dev \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR="$arch" -DFALCON_ARCH="$arch" \
  -DCMAKE_CXX_COMPILER="$here/cmake/zig-c++" -DCMAKE_AR="$here/cmake/zig-ar" -DCMAKE_RANLIB="$here/cmake/zig-ranlib" \
  -DCMAKE_CXX_COMPILER_WORKS=ON >"$work.log" 2>&1 || { cat "$work.log" >&2; exit 1; }
cmake --build "$work" --target falcon_shim falcon-launch >"$work.log" 2>&1 || { cat "$work.log" >&2; exit 1; }
install -m 0755 "$work/libfalcon_shim.so" "$work/falcon-launch" "$out/"
