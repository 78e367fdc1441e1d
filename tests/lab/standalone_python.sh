#!/bin/sh
# Builds CPython 3.11 from Debian's copy of its source, laid out as an install_only archive of python-build-standalone,
# which it stands in for in tests. Runs as root in a container of Debian 11, so that every newer glibc runs it.
# Argument: the directory for python.tar.gz.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
mirror=$(awk '$1 == "deb" { print $(NF > 4 && $2 ~ /^\[/ ? 3 : 2); exit }' /etc/apt/sources.list)
echo "deb-src [trusted=yes] $mirror bookworm main" >/etc/apt/sources.list.d/python.list
apt-get update -qq
apt-get install -qq --yes --no-install-recommends gcc libc6-dev make pkg-config \
    zlib1g-dev libssl-dev libffi-dev libbz2-dev liblzma-dev >/dev/null
mkdir /build
cd /build
apt-get --option APT::Sandbox::User=root --tar-only -qq source python3.11
mkdir source
tar --extract --file python3.11_*.orig.tar.* --strip-components=1 --directory source
cd source
# What the modules need lies in the archive too. Half the time of a build goes into -O3 and -g, which no test needs.
export LD_RUN_PATH="\$ORIGIN/../.." OPT="-DNDEBUG -fwrapv -O1"
./configure --quiet --prefix=/python --disable-test-modules --with-ensurepip=no
make --silent "-j$(nproc)"
# Without this module nothing is compiled thrice to bytecode, which the archive has not: a third of what the C compiler takes.
mv Lib/compileall.py /build
make --silent install DESTDIR=/build
mv /build/compileall.py /build/python/lib/python3.11
cd /build/python
for library in ssl crypto ffi z bz2 lzma; do
    cp --dereference $(ldconfig -p | awk -v name="lib$library.so." 'index($1, name) == 1 { print $NF; exit }') lib
done
rm -r lib/libpython* lib/python3.11/config-* lib/python3.11/idlelib lib/python3.11/tkinter lib/python3.11/lib2to3 share
find . -name __pycache__ -prune -exec rm -r {} +
find bin lib -type f \( -name '*.so*' -o -name python3.11 \) -exec strip --strip-unneeded {} +
tar --create --gzip --file "$1/python.tar.gz" --owner=0 --group=0 --numeric-owner --directory /build python
