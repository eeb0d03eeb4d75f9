#!/usr/bin/env bash
# Run release/smoke.py with a wheel for another processor: by qemu-user, with Debian's Python for that processor.
#
#     release/emulated.sh aarch64 dist/klamm-….whl
#
# Everything but qemu itself is unpacked into .tools/emulated; the machine's own packages stay as they are. The exit code
# is 3 if it cannot be run here, and the last line says why.
set -euo pipefail
processor=$1 wheel=$(realpath "$2")
cd "$(dirname "$0")/.."

cannot() { echo "$1"; exit 3; }

[ "$processor" = aarch64 ] || cannot "no Python for $processor is known"
case $(basename "$wheel") in
*-cp311-*) ;;
*) cannot "$(basename "$wheel") is for another Python than 3.11, which is the only one that Debian has for $processor" ;;
esac
command -v apt-get >/dev/null || cannot "Debian's packages are needed, and there is no apt-get"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [ -z "$qemu" ]; then
    [ "$(id -u)" = 0 ] && apt-get install -y --no-install-recommends qemu-user-static >/dev/null 2>&1 ||
        cannot "qemu-user is not installed: sudo apt-get install qemu-user-static"
    qemu=$(command -v qemu-aarch64-static)
fi

home=$PWD/.tools/emulated root=$PWD/.tools/emulated/root
if [ ! -x "$root/usr/bin/python3.11" ]; then
    rm -rf "$home"
    mkdir -p "$home"/state/lists/partial "$home"/cache/archives/partial "$root"
    touch "$home/state/status"
    apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$home/state"
        -o Dir::State::status="$home/state/status" -o Dir::Cache="$home/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update >/dev/null 2>&1 || cannot "Debian's list of packages for arm64 cannot be fetched"
    (cd "$home" && "${apt[@]}" download python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libexpat1 \
        zlib1g libssl3 libffi8 libsqlite3-0 libbz2-1.0 liblzma5 libcrypt1 libuuid1 libgcc-s1 >/dev/null 2>&1) ||
        cannot "Debian's Python 3.11 for arm64 cannot be fetched"
    for package in "$home"/*.deb; do dpkg-deb -x "$package" "$root"; done
fi

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
.venv/bin/uv pip install -q --target "$site" --python-platform aarch64-manylinux_2_28 --python-version 3.11 \
    --only-binary :all: "$wheel[cli]" pytest || cannot "the packages that Klamm needs are not there for $processor"
# The Python that smoke.py starts is emulated, too.
cat >"$site/python" <<END
#!/bin/sh
exec "$qemu" -L "$root" -E PYTHONPATH="$site" -E PYTHONHOME="$root/usr" -E LD_LIBRARY_PATH="$root/lib/aarch64-linux-gnu" "$root/usr/bin/python3.11" "\$@"
END
chmod +x "$site/python"
if kcat=$(command -v kcat); then ln -s "$kcat" "$site/kcat"; fi  # this machine's, as a client elsewhere
PATH="$site" KLAMM_SMOKE_PYTHON="$site/python" "$site/python" release/smoke.py
