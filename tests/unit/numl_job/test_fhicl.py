"""Which producers of a FHiCL file ask a Triton, and the file that tells them where it is."""

import pytest

from numl_job.fhicl import producers_of, with_server

NESTED = """
#include "services.fcl"
BEGIN_PROLOG
physics.producers.old.TritonConfig.serverURL: "a:1"
END_PROLOG
physics: {
  producers: {
    hits: { module_type: "GausHitFinder" }  // TritonConfig: {
    ngone: { module_type: NuGraphInferenceSonicTriton  note: "TritonConfig: { \\"" }
    ngtwo: { TritonConfig: { serverURL: "b:1" ssl: true } }
    ngthree: @local::icarus_NuGraph_triton_ng2
    ngfour: @local::nugraph_libtorch
  }
  reco: [ hits, ngone ]
  analyzers: { look: { TritonConfig: { serverURL: "c:1" } } }
}
physics.producers.ngfive @protect_ignore: { TritonConfig: {} }
"""


@pytest.mark.parametrize(
    ("text", "producers"),
    [
        (NESTED, ["ngone", "ngtwo", "ngthree", "ngfive"]),
        ('physics.producers.ng.TritonConfig.modelName: "nugraph3"\n', ["ng"]),
        ("physics: { producers: { ng: { TritonConfig: @local::triton } } }", ["ng"]),
        ("# physics.producers.ng.TritonConfig: {}\n", []),
        ("physics.producers: { @table::reco_producers }\n", []),
        ("physics: { producers: { ng: {", []),
        ("", []),
    ],
)
def test_it_finds_producers_with_a_triton_of_their_own(text, producers):
    assert producers_of(text) == producers


def test_the_address_is_appended_for_each_producer():
    assert with_server("process_name: X", ["a", "b"], "127.0.0.1:9", ssl=False) == (
        "process_name: X\n"
        'physics.producers.a.TritonConfig.serverURL: "127.0.0.1:9"\n'
        "physics.producers.a.TritonConfig.ssl: false\n"
        'physics.producers.b.TritonConfig.serverURL: "127.0.0.1:9"\n'
        "physics.producers.b.TritonConfig.ssl: false\n"
    )
