"""Write the tarball of a library that is quickly built, and print its sha256: the same every time.

It is shaped as those of UCX and UCC are (autogen.sh makes configure, whose options say what it is built with), and
needs no compiler: the library that it installs is a copy of the system's libm.
"""

import hashlib
import io
import sys
import tarfile
from pathlib import Path

FILES = {
    "autogen.sh": "#!/bin/sh\nmv configure.ac configure\n",
    "configure.ac": """#!/bin/sh
with=none
for option; do
  case $option in
    --prefix=*) prefix=${option#--prefix=} ;;
    --with-ucx*) with=ucp ;;
    --with-*) with=${option#--with-} ;;
  esac
done
echo "PREFIX = $prefix" >Makefile
echo "WITH = ${with%%=*}" >>Makefile
cat rules.mk >>Makefile
""",
    "rules.mk": """
all:
\tcp /lib/$$(uname -m)-linux-gnu/libm.so.6 libucc.so.1
install:
\tmkdir -p $(PREFIX)/include/ucc/api $(PREFIX)/lib/ucc
\tcp ucc_version.h $(PREFIX)/include/ucc/api/
\tcp ucc_version.h $(PREFIX)/include/ucc/api/ucc.h
\tcp libucc.so.1 $(PREFIX)/lib/
\ttouch $(PREFIX)/lib/ucc/libucc_tl_$(WITH).so.1
""",
    "ucc_version.h": "#define UCC_API_MAJOR 1\n#define UCC_API_MINOR 4\n",
}


def entry(name: str, text: str) -> tuple[tarfile.TarInfo, io.BytesIO]:
    """Return what a tar file has of a program of the source."""
    about = tarfile.TarInfo(f"some-1.4.4/{name}")
    about.size, about.mode = len(text), 0o755
    return about, io.BytesIO(text.encode())


with tarfile.open(sys.argv[1], "w") as tarball:
    for file_name, content in FILES.items():
        tarball.addfile(*entry(file_name, content))
print(hashlib.sha256(Path(sys.argv[1]).read_bytes()).hexdigest())
