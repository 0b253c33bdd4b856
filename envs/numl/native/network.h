// A network as its model card describes it, and what runs it. Plain pointers: the code behind them
// is compiled once for each level of instructions (see kernels.h).
#pragma once

#include <stdint.h>

#include "arena.h"

namespace numl {

// y = x W + b, the weights as [inputs, outputs].
struct Layer {
  const float* weight = nullptr;
  const float* bias = nullptr;
  int32_t inputs = 0, outputs = 0;
};

// One layer, or vector, for all planes, or one for each (nugraph2: for each plane and class).
template <class T>
struct PerPlane {
  const T* each = nullptr;
  int32_t count = 0;

  const T& operator[](int32_t plane) const { return each[plane % count]; }
};

// The score of a gate: one part for the receiving node, with the bias, and one for the sender.
struct Gate {
  const float* target = nullptr;
  const float* source = nullptr;
  float bias = 0;
};

struct Block {
  PerPlane<Gate> gate;
  PerPlane<Layer> hidden, output;
};

enum class Kind { nugraph3, nugraph2 };
enum class Nexus { sum, concat, joint };
enum class Node { hit, event, beta, coordinates };
enum class Activation { none, softmax, sigmoid };

struct Head {
  Node node;
  int32_t width;
  Activation activation;
  int32_t column;  // the first of its columns in the layer of all heads of its node
};

// One vector of the instance embedding (nugraph3), and the heads on it.
struct Embedding {
  Layer start, hidden;
  Layer middle;  // without outputs: an update has two layers, and the last one's Mish
  Layer output, decoder, heads;
};

// For nugraph2 with C classes, the index plane C + class in everything that is per plane.
struct Network {
  Kind kind;
  Nexus nexus;
  int32_t iterations, planes, features, classes;
  int32_t hit_width, nexus_width, event_width;
  const float* mean;  // [planes, features], or null: features go in as they are
  const float* std;
  PerPlane<Layer> encoder;
  Layer nexus_encoder;  // without outputs: spacepoints start from zeros
  Block planar, down;
  // nugraph3: encoder and the own half of planar's hidden layer as one, for the first iteration.
  PerPlane<Layer> first_own;
  Block up, to_event, from_event;  // nugraph3
  PerPlane<Layer> nexus_hidden;    // nugraph2: what a plane's hits contribute
  const Layer* nexus_output;       // nugraph2: [C], behind the sum of those
  const float* nexus_bias;         // nugraph2: [C, N], of the sum
  const Head* heads;
  int32_t head_count;
  PerPlane<Layer> hit_heads;  // all heads on hits side by side
  Layer event_heads;
  bool has_embedding;
  Embedding beta, coordinates;
};

// The lists of a Graph.
struct GraphView {
  int32_t planes, hits, spacepoints, features;
  const int32_t* first;
  const float* feature;
  const float* position;
  const int32_t *edge_offsets, *edge_source;
  const int32_t *up_offsets, *up_hit;
  const int32_t *down_offsets, *down_spacepoint;
};

// Runs the network. The answers of head h go to outputs[h * planes + plane], an event's to
// outputs[h * planes]: [hits of the plane, width], or [width].
using Run = void(const Network&, const GraphView&, float* const* outputs, Arena*);

#if defined(__x86_64__)
namespace x86_64_v3 {
Run run;
}
namespace x86_64_v4 {
Run run;
}
#endif
namespace baseline {
Run run;
}

}  // namespace numl
