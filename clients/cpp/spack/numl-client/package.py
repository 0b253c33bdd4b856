"""Spack's recipe: copy the folder numl-client into ``packages/`` of a repository of yours."""

from spack.package import *


class NumlClient(CMakePackage):
    """Client of NuGraph models on Triton servers, for C++ frameworks."""

    license("Apache-2.0")

    version("main", branch="main")

    variant("program", default=True, description="Build numl-label, which reads HDF5")
    variant("shared", default=True, description="Build a shared library")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.20:", type="build")
    depends_on("grpc")
    depends_on("protobuf")
    depends_on("hdf5", when="+program")

    root_cmakelists_dir = "clients/cpp"

    def cmake_args(self):
        return [
            self.define_from_variant("NUML_PROGRAM", "program"),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define("BUILD_TESTING", False),
        ]
