#!/bin/sh
# rootfs.sh DEST PATH...: an image's file tree without a package manager. Copies the paths and every shared library that
# an ELF file in them needs (found by ldd), and writes the few files of /etc that a non-root program expects.
# Runs inside a build stage.
set -eu
dest=$1
shift
mkdir -p "$dest/usr/lib" "$dest/usr/lib64" "$dest/usr/bin" "$dest/etc" "$dest/tmp"
chmod 1777 "$dest/tmp"
for folder in bin lib lib64; do ln -sfn "usr/$folder" "$dest/$folder"; done

# A link may lead out of the paths: the file comes along, under the name that the link gives it.
links=$(find "$@" -type l | while read -r link; do
  target=$(cd "$(dirname "$link")" && realpath -s "$(readlink "$link")")
  [ ! -f "$target" ] || echo "$target"
done | sort -u)

for path in "$@"; do
  mkdir -p "$dest$(dirname "$path")"
  cp -a "$path" "$dest$path"
done

# ldd names libraries by their SONAME, which is what the loader will look for: copy what the name points to.
{
  echo "$links"
  find "$@" -type f \( -name '*.so*' -o -perm /111 \) -exec sh -c 'ldd "$@" 2>/dev/null' _ {} + |
    awk '/=> \//{print $3} /^\t\/lib/{print $1}'
  echo "$links" | grep -F .so | xargs -r ldd 2>/dev/null | awk '/=> \//{print $3}'
} | sort -u | while read -r file; do
  target=$dest$file
  case $file in /lib*) target=$dest/usr$file ;; esac
  [ -z "$file" ] || [ -e "$target" ] ||
    { mkdir -p "$(dirname "$target")" && cp -L --preserve=mode,timestamps "$file" "$target"; }
done
# Opened by name at run time, when a thread is cancelled: no ELF header tells.
cp -L --preserve=mode,timestamps "$(ldconfig -p | awk '/libgcc_s.so.1 /{print $NF; exit}')" "$dest/usr/lib/$(uname -m)-linux-gnu/libgcc_s.so.1"

printf 'root:x:0:0:root:/:/sbin/nologin\nfalcon:x:65532:65532:falcon:/tmp:/sbin/nologin\n' >"$dest/etc/passwd"
printf 'root:x:0:\nfalcon:x:65532:\n' >"$dest/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$dest/etc/nsswitch.conf"
cp -L /etc/os-release "$dest/etc/os-release"
