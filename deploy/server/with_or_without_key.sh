#!/bin/sh
# with_or_without_key.sh PYTHON -IS keyed_start.py --[new-]key-file FILE -- PROGRAM ARGUMENT...
#
# Not every image of Triton has a Python. Without one the program is started with the placeholder
# in the key's place, and its admin endpoints are closed to everybody.
if [ -x "$1" ]; then exec "$@"; fi
echo "the admin endpoints are closed to everybody: this image has no $1" >&2
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
