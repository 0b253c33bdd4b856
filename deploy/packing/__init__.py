"""The packed environment: the lock as a relocatable conda prefix, and archives of it.

What it is made of is decided first (:mod:`.plan`). Then the way of a wheel: downloaded
(:mod:`.wheels`), unpacked as an installation would and slimmed (:mod:`.wheel_tree`,
:mod:`.slimming`), compiled (:mod:`.bytecode`), written as a conda package
(:mod:`.packages`, :mod:`.conda_package`), installed by py-rattler (:mod:`.prefix`,
:mod:`.channel`), packed by conda-pack (:mod:`.archive`, :mod:`.layers`). The interpreter
takes the same way: one of this host (:mod:`.cpython`), or of a conda channel.
 What older builds left in the
cache goes when a build has succeeded (:mod:`.cache`).
"""
