"""What mksquashfs is told."""

from deploy.artefacts.sif_file import options, variables


def test_everything_that_would_differ_is_given_to_mksquashfs():
    words = " ".join(options("zstd", epoch=7))
    assert words == (
        "-noappend -no-progress -quiet -no-xattrs -no-exports -all-root -mkfs-time 7 -all-time 7 "
        "-b 256K -comp zstd -Xcompression-level 2"
    )
    gzip = " ".join(options("gzip", epoch=7))
    assert gzip == words.replace("zstd", "gzip").replace("level 2", "level 6")


def test_mksquashfs_is_not_told_the_time_twice(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert "SOURCE_DATE_EPOCH" not in variables()
