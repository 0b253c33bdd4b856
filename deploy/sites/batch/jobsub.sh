#!/bin/bash
# A job of jobsub_lite (Fermilab) that labels its share of a list of files, beside a server of its own.
# It needs numlkit and a .sif on CVMFS; files are read and results written by ifdh. To submit:
#   split --number=r/100 --numeric-suffixes --suffix-length=4 files.txt share.
#   tar czf shares.tgz share.*
#   jobsub_submit -G dune -N 100 --expected-lifetime 4h --memory 4GB --disk 10GB \
#     --tar_file_name "dropbox://$PWD/shares.tgz" -e "LABELS=/pnfs/dune/scratch/users/$USER/labels" \
#     "file://$PWD/deploy/sites/batch/jobsub.sh"
# What has results in $LABELS already is left out: submit again what jobs did not finish.
set -euo pipefail
numlkit=${NUMLKIT:-/cvmfs/example.org/numl/current/bin/numlkit}
image=${NUML_IMAGE:-/cvmfs/example.org/numl/current/numl.sif}
cd "${_CONDOR_SCRATCH_DIR:-$PWD}"
mkdir -p events labels
status=0
while read -r file || [[ -n $file ]]; do # the last line may lack its end
  name=$(basename "$file" .h5)
  # The record is copied last: a file that has one is done.
  if ifdh ls "$LABELS/$name.json" 0 2>/dev/null | grep -q json; then continue; fi
  if ! ifdh cp "$file" "events/$name.h5"; then
    rm -f "events/$name.h5"
    status=1
  fi
done <"${INPUT_TAR_DIR_LOCAL:?}/share.$(printf %04d "$PROCESS")"
if [[ -z $(ls events) ]]; then exit "$status"; fi
"$numlkit" exec --engine apptainer --image "$image" --models nugraph3 -- \
  "$numlkit" infer events/*.h5 --into labels || status=$?
# Also if some failed: what is done is kept.
for record in labels/*.json; do
  [[ -e $record ]] || continue
  ifdh cp "${record%.json}.h5" "$LABELS/$(basename "$record" .json).h5" &&
    ifdh cp "$record" "$LABELS/$(basename "$record")" || status=1
done
exit "$status"
