"""The .sif: what Apptainer runs, made from the Docker image or, without Docker, from its layers.

A .sif is a squashfs with a header. Apptainer itself makes the small part that turns a file
system into one of its containers (:mod:`.recipe`, from ``containers/numl.def``) and the
header (:mod:`.sif_file`); the large part goes straight from where it lies (:mod:`.rootfs`)
into the squashfs (:mod:`.squashfs`), without the copies that ``apptainer build`` makes.
"""
