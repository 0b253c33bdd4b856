// Message passing of NuGraph3 and NuGraph2. Compiled once for each instruction level, in the
// namespace NUML_LEVEL.

#include "kernels.h"

#include "network.h"

namespace numl::NUML_LEVEL {
namespace {

// Rows for nodes, and for what the last tile of a plane, which may begin at any node, has beyond.
int64_t whole_tiles(int64_t nodes) { return nodes + kRows - 1; }

Dense dense(const Layer& layer) {
  return {layer.weight, layer.bias, 0, layer.inputs, layer.outputs};
}

// The layer behind its first inputs, starting from rows that hold what those gave.
Dense dense_after(const Layer& layer, int32_t skipped, const float* start) {
  return {layer.weight + int64_t{skipped} * layer.outputs, start, layer.outputs,
          layer.inputs - skipped, layer.outputs};
}

// The layer's first inputs alone, starting from rows that hold what the others gave.
Dense dense_until(const Layer& layer, int32_t inputs, const float* start) {
  return {layer.weight, start, layer.outputs, inputs, layer.outputs};
}

// out[i] = x[i] . weight + bias for the nodes [first, last).
NUML_ONCE void scores(const float* x, int64_t width, const float* weight, float bias, int64_t first,
                      int64_t last, float* out) {
  for (int64_t i = first; i < last; ++i) {
    out[i] = dot(x + i * width, weight, width) + bias;
  }
}

NUML_ONCE void fill(float value, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = value;
  }
}

// What one_layer and two_layers work in.
float* scratch(Arena* arena, int64_t inputs, int64_t middle, int64_t outputs) {
  return arena->floats(kNodes * (inputs + middle + outputs));
}

// Calls use(plane, first, last) for the hits of each plane, or once for all where it makes no
// difference.
template <class Use>
void over_hits(const GraphView& graph, bool apart, Use use) {
  if (!apart) {
    use(0, 0, graph.hits);
    return;
  }
  for (int32_t plane = 0; plane < graph.planes; ++plane) {
    use(plane, graph.first[plane], graph.first[plane + 1]);
  }
}

// The features that go into the network, [H, features].
const float* normalised(const Network& network, const GraphView& graph, Arena* arena) {
  if (network.mean == nullptr) {
    return graph.feature;
  }
  float* out = arena->floats(int64_t{graph.hits} * graph.features);
  over_hits(graph, true, [&](int32_t plane, int64_t first, int64_t last) {
    const float* mean = network.mean + plane * graph.features;
    const float* std = network.std + plane * graph.features;
    for (int64_t i = first; i < last; ++i) {
      for (int32_t f = 0; f < graph.features; ++f) {
        const int64_t at = i * graph.features + f;
        out[at] = (graph.feature[at] - mean[f]) / std[f];
      }
    }
  });
  return out;
}

NUML_ONCE void softmax(float* values, int64_t count) {
  float largest = values[0], total = 0;
  for (int64_t i = 1; i < count; ++i) {
    largest = values[i] > largest ? values[i] : largest;
  }
  for (int64_t i = 0; i < count; ++i) {
    values[i] -= largest;
  }
  map<Exponential>(values, count);
  for (int64_t i = 0; i < count; ++i) {
    total += values[i];
  }
  for (int64_t i = 0; i < count; ++i) {
    values[i] /= total;
  }
}

// Gives each head its columns of rows that hold all heads' numbers.
void deal_out(const Network& network, Node node, int32_t plane, const float* rows, int64_t count,
              int64_t stride, float* const* outputs) {
  for (int32_t h = 0; h < network.head_count; ++h) {
    const Head& head = network.heads[h];
    if (head.node != node) {
      continue;
    }
    float* to = outputs[h * network.planes + plane];
    for (int64_t i = 0; i < count; ++i) {
      for (int32_t k = 0; k < head.width; ++k) {
        to[i * head.width + k] = rows[i * stride + head.column + k];
      }
      if (head.activation == Activation::softmax) {
        softmax(to + i * head.width, head.width);
      }
    }
    if (head.activation == Activation::sigmoid) {
      map<Sigmoid>(to, count * head.width);
    }
  }
}

// Answers from the features of the hits, which have `width` numbers in `parts` blocks of all hits.
void decode_hits(const Network& network, const GraphView& graph, const float* hits, int64_t width,
                 int64_t parts, float* const* outputs, Arena* arena) {
  if (network.hit_heads.count == 0) {
    return;
  }
  const int64_t stride = network.hit_heads[0].outputs;
  float* rows = arena->floats(graph.hits * stride);
  float* buffer = scratch(arena, parts * width, 0, stride);
  for (int32_t plane = 0; plane < graph.planes; ++plane) {
    const int64_t first = graph.first[plane], last = graph.first[plane + 1];
    one_layer<Identity>(first, last, dense(network.hit_heads[plane]), rows, stride, buffer,
                        [&](int64_t i, float* to) {
                          for (int64_t part = 0; part < parts; ++part) {
                            copy(hits + (part * graph.hits + i) * width, width, to + part * width);
                          }
                        });
    deal_out(network, Node::hit, plane, rows + first * stride, last - first, stride, outputs);
  }
}

#include "nugraph2.h"
#include "nugraph3.h"

}  // namespace

void run(const Network& network, const GraphView& graph, float* const* outputs, Arena* arena) {
  if (network.kind == Kind::nugraph3) {
    NuGraph3(network, graph, arena).run(outputs);
  } else {
    NuGraph2(network, graph, arena).run(outputs);
  }
}

}  // namespace numl::NUML_LEVEL
