// The C interface of libnuml, which numl_serving.native calls by ctypes.
#pragma once

#include <stdint.h>

#include "graph.h"

extern "C" {

// An array of weights, laid out as the model card's page says; `sets` is its first dimension where
// layers may be there once for all planes or once for each.
struct numl_weight {
  const char* name;
  const float* data;
  int32_t sets;
};

struct numl_head {
  const char* name;
  int32_t node;        // 0 hit, 1 event; 2 beta and 3 coordinates of the embedding
  int32_t width;
  int32_t activation;  // 0 none, 1 softmax, 2 sigmoid
};

// Indices of heads; -1 where there is no such condition. No embedding: no clustering.
struct numl_clustering {
  int32_t embedding, signal, semantic, background;
  double eps;
  int32_t min_samples;
};

struct numl_card {
  int32_t kind;   // 3 or 2
  int32_t nexus;  // 0 sum, 1 concat, 2 joint
  int32_t iterations, planes, features, classes;
  int32_t hit_width, nexus_width, event_width;
  int32_t starts_from_position;
  int32_t embedding_layers;  // of an update: 2 or 3; 0: no embedding
  int32_t embedding_width, embedding_hidden;
  const float* mean;  // [planes, features], or null
  const float* std;
  int32_t heads;
  const numl_head* head;
  numl_clustering clustering;
  int32_t weights;
  const numl_weight* weight;
  int32_t level;  // of instructions: 1 baseline, 3 and 4 x86-64-v3 and -v4; 0 the best there is
};

struct numl_network;
struct numl_graph;

// Copies everything it is given. Null, with a reason in `error`, if a weight is missing.
numl_network* numl_network_new(const numl_card* card, char* error, int64_t size);
void numl_network_free(numl_network* network);
// The instruction level it runs at.
int32_t numl_network_level(const numl_network* network);

// Answers an event: outputs[h * planes + plane] for heads on hits, [hits of the plane, width];
// outputs[h * planes] for heads on the event, [width]; clusters[plane], [hits of the plane], with a
// clustering. Rows of a plane are in the order of the request. `graph_seconds` becomes the time that
// the graph took. A second call waits.
int32_t numl_infer(numl_network* network, const numl::Event* event, float* const* outputs,
                   int32_t* const* clusters, double* graph_seconds, char* error, int64_t size);

// The graph alone; its lists stay valid until it is freed. Null, with a reason in `error`, if the
// event is refused.
numl_graph* numl_graph_new(const numl::Event* event, char* error, int64_t size);
void numl_graph_free(numl_graph* graph);
// Which: 0 first, 1 row, 2 edge_offsets, 3 edge_source, 4 up_offsets, 5 up_hit.
int64_t numl_graph_integers(const numl_graph* graph, int32_t which, const int32_t** data);
// Which: 0 feature, 1 position.
int64_t numl_graph_floats(const numl_graph* graph, int32_t which, const float** data);

// Labels points as scikit-learn's DBSCAN does; see cluster.h.
int32_t numl_cluster(const float* x, int32_t points, int32_t width, double eps,
                     int32_t min_samples, int32_t* labels, char* error, int64_t size);

// Makes numpy, given the table of its C interface, return an empty array where it would refuse an
// impossible shape; see guard.cpp.
void numl_guard_arrays(void** numpy);
}
