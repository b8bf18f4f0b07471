#!/bin/sh
# shim/check_symbols.sh LIBRARY: fails if it needs a newer glibc than 2.28, a C++ library, or exports anything but hooks, falcon_copy and falcon_read_variables.
set -eu
newest=$(objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -1)
[ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -1)" = GLIBC_2.28 ] ||
  { echo "$1 needs $newest; images in use have GLIBC_2.28" >&2; exit 1; }
if objdump -p "$1" | grep -E 'NEEDED.*(libstdc\+\+|libc\+\+|libgcc_s)'; then
  echo "$1 needs a C++ library: it would clash with the training program's own" >&2
  exit 1
fi
# Another C library's loader ends the program over a symbol that it lacks: a musl program that inherits LD_PRELOAD.
ours=$(nm -D --undefined-only "$1" | awk '{print $2}' | grep -E '^__|_chk' | grep -vE '^__errno_location(@|$)' || true)
[ -z "$ours" ] || { echo "$1 needs what only glibc has: $ours" >&2; exit 1; }
# What a library that is loaded late may take of the reserve for thread-local storage: PyTorch leaves little of it.
local=$(objdump -p "$1" | awk '$1 == "TLS" {getline; print $4}')
[ "$((local))" -le 64 ] || { echo "$1 has $((local)) bytes of thread-local storage; 64 can be loaded late" >&2; exit 1; }
extra=$(nm -D --defined-only "$1" | awk '{print $3}' | grep -vE '^(_ZN4gloo|nccl[A-Z]|(cudaGraphLaunch|bind|connect|falcon_copy|falcon_read_variables)$)' || true)
[ -z "$extra" ] || { echo "$1 exports more than its hooks: $extra" >&2; exit 1; }
echo "$1: newest symbol $newest, no C++ library, $(stat -c %s "$1") bytes"
