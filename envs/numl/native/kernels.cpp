// Message passing of NuGraph3 and NuGraph2. Compiled once for each level of instructions, of which
// NUML_LEVEL is the namespace.

#include "kernels.h"

#include "network.h"

namespace numl::NUML_LEVEL {
namespace {

int64_t rounded(int64_t nodes) { return (nodes + kNodes - 1) / kNodes * kNodes; }

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
void scores(const float* x, int64_t width, const float* weight, float bias, int64_t first,
            int64_t last, float* out) {
  for (int64_t i = first; i < last; ++i) {
    out[i] = dot(x + i * width, weight, width) + bias;
  }
}

void copy(const float* from, int64_t count, float* to) { over_columns(count, Copy{from, to}); }

void fill(float value, int64_t count, float* to) {
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

void softmax(float* values, int64_t count) {
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

// NuGraph3

// What a block sends: features of the nodes that send, their edges sorted by the node that
// receives, and the gate of each edge.
struct Sent {
  const float* table;
  int64_t width;
  const int32_t* rows;
  const int32_t* offsets;
  const float* gate;
  bool shift;

  void aggregate(int64_t node, float* to) const {
    const Messages messages{table, rows, gate, width, offsets[node], offsets[node + 1]};
    over_columns(width, SoftmaxSum{messages, to, shift});
  }
};

// gate[e] = sigmoid(target[node] + source[rows[e]]).
void gates(const float* target, const float* source, const int32_t* rows, const int32_t* offsets,
           int64_t nodes, float* gate) {
  for (int64_t node = 0; node < nodes; ++node) {
    for (int64_t e = offsets[node]; e < offsets[node + 1]; ++e) {
      gate[e] = target[node] + source[rows[e]];
    }
  }
  map<Sigmoid>(gate, offsets[nodes]);
}

class NuGraph3 {
 public:
  NuGraph3(const Network& network, const GraphView& graph, Arena* arena)
      : network_(network), graph_(graph), arena_(arena) {
    const int64_t hits = graph.hits, spacepoints = graph.spacepoints;
    const int64_t h = network.hit_width, n = network.nexus_width, e = network.event_width;
    merged_width_ = network.nexus == Nexus::concat ? graph.planes * n : n;
    joint_ = network.nexus == Nexus::joint;
    if (joint_) {
      join_planes();
    }
    const int64_t segments = joint_ ? spacepoints : graph.planes * spacepoints;
    const int64_t edges = graph.edge_offsets[hits], nexus_edges = graph.down_offsets[hits];
    hits_ = arena->floats(rounded(hits) * h);
    next_hits_ = arena->floats(rounded(hits) * h);
    nexus_ = arena->floats(rounded(spacepoints) * n);
    merged_ = arena->floats(rounded(spacepoints) * merged_width_);
    planes_ = arena->floats(rounded(spacepoints) * n);
    start_ = arena->floats(rounded(spacepoints) * n);
    event_ = arena->floats(e);
    sent_ = arena->floats(n);
    gate_ = arena->floats(edges > nexus_edges ? edges : nexus_edges);
    target_ = arena->floats(hits > segments ? hits : segments);
    source_ = arena->floats(hits > spacepoints ? hits : spacepoints);
    every_ = arena->integers(spacepoints);
    for (int32_t s = 0; s < spacepoints; ++s) {
      every_[s] = s;
    }
    const int64_t widest = h + n + merged_width_ + e + network.features + 3;
    scratch_ = scratch(arena, 2 * widest, widest, widest);
  }

  void run(float* const* outputs) {
    encode();
    for (int32_t i = 0; i < network_.iterations; ++i) {
      planar(i == 0);
      up();
      through_event();
      down();
    }
    decode_hits(network_, graph_, hits_, network_.hit_width, 1, outputs, arena_);
    if (network_.event_heads.outputs > 0) {
      const int64_t width = network_.event_heads.outputs;
      float* row = arena_->floats(width);
      float* buffer = scratch(arena_, network_.event_width, 0, width);
      one_layer<Identity>(0, 1, dense(network_.event_heads), row, width, buffer,
                          [&](int64_t, float* to) { copy(event_, network_.event_width, to); });
      deal_out(network_, Node::event, 0, row, 1, width, outputs);
    }
  }

 private:
  // The nexus edges of all planes, sorted by spacepoint, then hit.
  void join_planes() {
    const int64_t spacepoints = graph_.spacepoints;
    int32_t* offsets = arena_->integers(spacepoints + 1);
    int32_t* hit = arena_->integers(graph_.down_offsets[graph_.hits]);
    int32_t count = 0;
    for (int64_t s = 0; s < spacepoints; ++s) {
      offsets[s] = count;
      for (int32_t plane = 0; plane < graph_.planes; ++plane) {
        const int64_t segment = plane * spacepoints + s;
        for (int32_t e = graph_.up_offsets[segment]; e < graph_.up_offsets[segment + 1]; ++e) {
          hit[count++] = graph_.up_hit[e];
        }
      }
    }
    offsets[spacepoints] = count;
    graph_.up_offsets = offsets;
    graph_.up_hit = hit;
  }

  // One layer of each plane on the features that go into the network.
  void from_input(const PerPlane<Layer>& layers, float* out) {
    const int64_t features = network_.features;
    over_hits(graph_, layers.count > 1, [&](int32_t plane, int64_t first, int64_t last) {
      one_layer<Identity>(
          first, last, dense(layers[plane]), out, network_.hit_width, scratch_,
          [&](int64_t i, float* to) { copy(input_ + i * features, features, to); });
    });
  }

  void encode() {
    input_ = normalised(network_, graph_, arena_);
    from_input(network_.encoder, hits_);
    if (network_.nexus_encoder.outputs > 0) {
      one_layer<Identity>(0, graph_.spacepoints, dense(network_.nexus_encoder), nexus_,
                          network_.nexus_width, scratch_,
                          [&](int64_t s, float* to) { copy(graph_.position + 3 * s, 3, to); });
    } else {
      fill(0, int64_t{graph_.spacepoints} * network_.nexus_width, nexus_);
    }
    fill(0, network_.event_width, event_);
  }

  void planar(bool is_first) {
    const Block& block = network_.planar;
    const int64_t width = network_.hit_width;
    over_hits(graph_, block.gate.count > 1, [&](int32_t plane, int64_t first, int64_t last) {
      const Gate& gate = block.gate[plane];
      scores(hits_, width, gate.target, gate.bias, first, last, target_);
      scores(hits_, width, gate.source, 0, first, last, source_);
    });
    gates(target_, source_, graph_.edge_source, graph_.edge_offsets, graph_.hits, gate_);
    const Sent sent{hits_, width, graph_.edge_source, graph_.edge_offsets, gate_,
                    needs_shift(hits_, graph_.hits * width)};
    if (!is_first) {
      update_hits(block, sent);
      return;
    }
    // What a hit's own features give follows from the few that went into the network.
    from_input(network_.first_own, next_hits_);
    over_hits(graph_, block.hidden.count > 1, [&](int32_t plane, int64_t first, int64_t last) {
      two_layers<Mish>(first, last,
                       dense_until(block.hidden[plane], network_.hit_width, next_hits_),
                       dense(block.output[plane]), next_hits_, width, scratch_,
                       [&](int64_t i, float* to) { sent.aggregate(i, to); });
    });
    swap_hits();
  }

  void swap_hits() {
    float* before = hits_;
    hits_ = next_hits_;
    next_hits_ = before;
  }

  // New features of the hits, from what they receive and their own.
  void update_hits(const Block& block, const Sent& sent) {
    const int64_t width = network_.hit_width;
    over_hits(graph_, block.hidden.count > 1, [&](int32_t plane, int64_t first, int64_t last) {
      two_layers<Mish>(first, last, dense(block.hidden[plane]), dense(block.output[plane]),
                       next_hits_, width, scratch_, [&](int64_t i, float* to) {
                         sent.aggregate(i, to);
                         copy(hits_ + i * width, width, to + sent.width);
                       });
    });
    swap_hits();
  }

  void up() {
    const Block& block = network_.up;
    const int64_t width = network_.hit_width, n = network_.nexus_width;
    const int64_t spacepoints = graph_.spacepoints;
    over_hits(graph_, block.gate.count > 1, [&](int32_t plane, int64_t first, int64_t last) {
      scores(hits_, width, block.gate[plane].source, 0, first, last, source_);
    });
    const int32_t groups = joint_ ? 1 : graph_.planes;
    for (int32_t plane = 0; plane < groups; ++plane) {
      const Gate& gate = block.gate[plane];
      for (int64_t s = 0; s < spacepoints; ++s) {
        target_[plane * spacepoints + s] = dot(nexus_ + s * n, gate.target, n) + gate.bias;
      }
    }
    gates(target_, source_, graph_.up_hit, graph_.up_offsets, groups * spacepoints, gate_);
    const bool shift = needs_shift(hits_, graph_.hits * width);
    for (int32_t plane = 0; plane < groups; ++plane) {
      const Layer& hidden = block.hidden[plane];
      if (plane == 0 || block.hidden.count > 1) {
        // What the spacepoint's own features give is the same for all planes.
        Dense own = dense_after(hidden, network_.hit_width, hidden.bias);
        own.start_stride = 0;  // the bias for all of them
        one_layer<Identity>(0, spacepoints, own, start_, n, scratch_,
                            [&](int64_t s, float* to) { copy(nexus_ + s * n, n, to); });
      }
      const bool add = network_.nexus == Nexus::sum && plane > 0;
      const bool beside = network_.nexus == Nexus::concat;
      const Sent sent{hits_, width, graph_.up_hit, graph_.up_offsets + plane * spacepoints,
                      gate_, shift};
      two_layers<Mish>(0, spacepoints, dense_until(hidden, network_.hit_width, start_),
                       dense(block.output[plane]), add ? planes_ : merged_ + (beside ? plane * n : 0),
                       add ? n : merged_width_, scratch_,
                       [&](int64_t s, float* to) { sent.aggregate(s, to); });
      if (add) {
        over_columns(spacepoints * n, Add{planes_, merged_});
      }
    }
  }

  // Spacepoints to the event, and back.
  void through_event() {
    const int64_t spacepoints = graph_.spacepoints;
    const int64_t n = network_.nexus_width, e = network_.event_width;
    const Block& in = network_.to_event;
    const float own = dot(event_, in.gate[0].target, e) + in.gate[0].bias;
    scores(merged_, merged_width_, in.gate[0].source, own, 0, spacepoints, source_);
    map<Sigmoid>(source_, spacepoints);
    const Messages messages{merged_, every_, source_, merged_width_, 0, spacepoints};
    const bool shift = needs_shift(merged_, spacepoints * merged_width_);
    two_layers<Mish>(0, 1, dense(in.hidden[0]), dense(in.output[0]), event_, e, scratch_,
                     [&](int64_t, float* to) {
                       over_columns(merged_width_, SoftmaxSum{messages, to, shift});
                       copy(event_, e, to + merged_width_);
                     });

    // The softmax of a single message is 1: a spacepoint receives the event, times its gate. What
    // the hidden layer makes of that is one vector, times the gate.
    const Block& out = network_.from_event;
    const Layer& hidden = out.hidden[0];
    const float sender = dot(event_, out.gate[0].source, e) + out.gate[0].bias;
    scores(merged_, merged_width_, out.gate[0].target, sender, 0, spacepoints, target_);
    map<Sigmoid>(target_, spacepoints);
    fill(0, n, sent_);
    for (int64_t j = 0; j < e; ++j) {
      for (int64_t k = 0; k < n; ++k) {
        sent_[k] += event_[j] * hidden.weight[j * n + k];
      }
    }
    for (int64_t s = 0; s < spacepoints; ++s) {
      for (int64_t k = 0; k < n; ++k) {
        start_[s * n + k] = hidden.bias[k] + target_[s] * sent_[k];
      }
    }
    two_layers<Mish>(0, spacepoints, dense_after(hidden, network_.event_width, start_),
                     dense(out.output[0]), nexus_, n, scratch_, [&](int64_t s, float* to) {
                       copy(merged_ + s * merged_width_, merged_width_, to);
                     });
  }

  void down() {
    const Block& block = network_.down;
    const int64_t width = network_.hit_width, n = network_.nexus_width;
    const int64_t spacepoints = graph_.spacepoints;
    over_hits(graph_, true, [&](int32_t plane, int64_t first, int64_t last) {
      const Gate& gate = block.gate[plane];
      if (plane == 0 || block.gate.count > 1) {
        scores(nexus_, n, gate.source, 0, 0, spacepoints, source_);
      }
      scores(hits_, width, gate.target, gate.bias, first, last, target_);
      for (int64_t i = first; i < last; ++i) {
        for (int64_t e = graph_.down_offsets[i]; e < graph_.down_offsets[i + 1]; ++e) {
          gate_[e] = target_[i] + source_[graph_.down_spacepoint[e]];
        }
      }
    });
    map<Sigmoid>(gate_, graph_.down_offsets[graph_.hits]);
    update_hits(block, {nexus_, n, graph_.down_spacepoint, graph_.down_offsets, gate_,
                        needs_shift(nexus_, spacepoints * n)});
  }

  const Network& network_;
  GraphView graph_;
  Arena* arena_;
  int64_t merged_width_;
  bool joint_;
  const float* input_ = nullptr;
  float *hits_, *next_hits_, *nexus_, *merged_, *planes_, *start_, *event_, *sent_;
  float *gate_, *target_, *source_, *scratch_;
  int32_t* every_;
};

// NuGraph2: every node has features for each class.

class NuGraph2 {
 public:
  NuGraph2(const Network& network, const GraphView& graph, Arena* arena)
      : network_(network), graph_(graph), arena_(arena) {
    const int64_t hits = rounded(graph.hits), spacepoints = rounded(graph.spacepoints);
    const int64_t c = network.classes, h = network.hit_width, n = network.nexus_width;
    const int64_t edges = graph.edge_offsets[graph.hits];
    const int64_t nexus_edges = graph.down_offsets[graph.hits];
    hits_ = arena->floats(c * hits * h);
    next_hits_ = arena->floats(c * hits * h);
    nexus_ = arena->floats(c * spacepoints * n);
    sent_ = arena->floats(hits * n);
    weight_ = arena->floats(c * (edges > nexus_edges ? edges : nexus_edges));
    target_ = arena->floats(c * hits);
    source_ = arena->floats(c * (hits > spacepoints ? hits : spacepoints));
    given_target_ = arena->floats(c * hits);
    given_source_ = arena->floats(c * hits);
    const int64_t widest = 2 * (h + network.features) + n;
    scratch_ = scratch(arena, widest, h + n, h + n);
  }

  void run(float* const* outputs) {
    given_ = normalised(network_, graph_, arena_);
    encode();
    for (int32_t i = 0; i < network_.iterations; ++i) {
      planar();
      up();
      down();
    }
    decode_hits(network_, graph_, hits_, network_.hit_width, network_.classes, outputs, arena_);
  }

 private:
  // Features of all hits for a class.
  float* of(float* hits, int64_t c) { return hits + c * graph_.hits * network_.hit_width; }
  float* nexus_of(int64_t c) { return nexus_ + c * graph_.spacepoints * network_.nexus_width; }

  // Calls use(index, class, first, last) for the hits of each plane and each class.
  template <class Use>
  void over_classes(Use use) {
    for (int32_t c = 0; c < network_.classes; ++c) {
      over_hits(graph_, true, [&](int32_t plane, int64_t first, int64_t last) {
        use(plane * network_.classes + c, c, first, last);
      });
    }
  }

  void encode() {
    const int64_t width = network_.hit_width, features = network_.features, hits = graph_.hits;
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      // What the given features add to the planar gates' scores, the same in all iterations.
      const Gate& gate = network_.planar.gate[index];
      scores(given_, features, gate.target + width, gate.bias, first, last,
             given_target_ + c * hits);
      scores(given_, features, gate.source + width, 0, first, last, given_source_ + c * hits);
    });
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      one_layer<Tanh>(first, last, dense(network_.encoder[index]), of(hits_, c), width, scratch_,
                      [&](int64_t i, float* to) { copy(given_ + i * features, features, to); });
    });
  }

  // The scores of the edges that the hits [first, last) receive, from nodes of which there are
  // so many.
  void score(int64_t first, int64_t last, const int32_t* rows, const int32_t* offsets,
             int64_t sources) {
    const int64_t edges = offsets[graph_.hits];
    for (int64_t c = 0; c < network_.classes; ++c) {
      const float *target = target_ + c * graph_.hits, *source = source_ + c * sources;
      for (int64_t i = first; i < last; ++i) {
        for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
          weight_[c * edges + e] = target[i] + source[rows[e]];
        }
      }
    }
  }

  void planar() {
    const Block& block = network_.planar;
    const int64_t width = network_.hit_width, features = network_.features, hits = graph_.hits;
    const int64_t edges = graph_.edge_offsets[hits];
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      const Gate& gate = block.gate[index];
      for (int64_t i = first; i < last; ++i) {
        const float* own = of(hits_, c) + i * width;
        target_[c * hits + i] = dot(own, gate.target, width) + given_target_[c * hits + i];
        source_[c * hits + i] = dot(own, gate.source, width) + given_source_[c * hits + i];
      }
    });
    score(0, hits, graph_.edge_source, graph_.edge_offsets, hits);
    over_columns(edges, ClassSoftmax{weight_, network_.classes, edges});
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      const float *table = of(hits_, c), *weight = weight_ + c * edges;
      two_layers<Tanh>(
          first, last, dense(block.hidden[index]), dense(block.output[index]), of(next_hits_, c),
          width, scratch_, [&](int64_t i, float* to) {
            const int64_t begin = graph_.edge_offsets[i], end = graph_.edge_offsets[i + 1];
            const int32_t* rows = graph_.edge_source;
            copy(table + i * width, width, to);
            copy(given_ + i * features, features, to + width);
            to += width + features;
            over_columns(width, WeightedSum{{table, rows, weight, width, begin, end}, to});
            over_columns(features,
                         WeightedSum{{given_, rows, weight, features, begin, end}, to + width});
          });
    });
    float* before = hits_;
    hits_ = next_hits_;
    next_hits_ = before;
  }

  void up() {
    const int64_t width = network_.hit_width, n = network_.nexus_width;
    const int64_t spacepoints = graph_.spacepoints;
    for (int32_t c = 0; c < network_.classes; ++c) {
      over_hits(graph_, true, [&](int32_t plane, int64_t first, int64_t last) {
        const Layer& layer = network_.nexus_hidden[plane * network_.classes + c];
        one_layer<Identity>(
            first, last, dense(layer), sent_, n, scratch_,
            [&](int64_t i, float* to) { copy(of(hits_, c) + i * width, width, to); });
      });
      const float* bias = network_.nexus_bias + c * n;
      one_layer<Tanh>(0, spacepoints, dense(network_.nexus_output[c]), nexus_of(c), n, scratch_,
                      [&](int64_t s, float* to) {
                        copy(bias, n, to);
                        for (int32_t plane = 0; plane < graph_.planes; ++plane) {
                          const int64_t segment = plane * spacepoints + s;
                          for (int64_t e = graph_.up_offsets[segment];
                               e < graph_.up_offsets[segment + 1]; ++e) {
                            over_columns(n, Add{sent_ + graph_.up_hit[e] * n, to});
                          }
                        }
                        map<Tanh>(to, n);
                      });
    }
  }

  void down() {
    const Block& block = network_.down;
    const int64_t width = network_.hit_width, n = network_.nexus_width, hits = graph_.hits;
    const int64_t spacepoints = graph_.spacepoints, edges = graph_.down_offsets[hits];
    over_hits(graph_, true, [&](int32_t plane, int64_t first, int64_t last) {
      for (int32_t c = 0; c < network_.classes; ++c) {
        const Gate& gate = block.gate[plane * network_.classes + c];
        scores(of(hits_, c), width, gate.target, gate.bias, first, last, target_ + c * hits);
        scores(nexus_of(c), n, gate.source, 0, 0, spacepoints, source_ + c * spacepoints);
      }
      score(first, last, graph_.down_spacepoint, graph_.down_offsets, spacepoints);
    });
    over_columns(edges, ClassSoftmax{weight_, network_.classes, edges});
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      const float *table = nexus_of(c), *weight = weight_ + c * edges;
      two_layers<Tanh>(first, last, dense(block.hidden[index]), dense(block.output[index]),
                       of(next_hits_, c), width, scratch_, [&](int64_t i, float* to) {
                         const int64_t begin = graph_.down_offsets[i];
                         const int64_t end = graph_.down_offsets[i + 1];
                         copy(of(hits_, c) + i * width, width, to);
                         const Messages messages{table, graph_.down_spacepoint, weight, n, begin,
                                                 end};
                         over_columns(n, WeightedSum{messages, to + width});
                         // A hit gets the mean over its spacepoints.
                         for (int64_t k = 0; end - begin > 1 && k < n; ++k) {
                           to[width + k] /= static_cast<float>(end - begin);
                         }
                       });
    });
    float* before = hits_;
    hits_ = next_hits_;
    next_hits_ = before;
  }

  const Network& network_;
  const GraphView graph_;
  Arena* arena_;
  const float* given_ = nullptr;
  float *hits_, *next_hits_, *nexus_, *sent_, *weight_, *target_, *source_, *scratch_;
  float *given_target_, *given_source_;
};

}  // namespace

void run(const Network& network, const GraphView& graph, float* const* outputs, Arena* arena) {
  if (network.kind == Kind::nugraph3) {
    NuGraph3(network, graph, arena).run(outputs);
  } else {
    NuGraph2(network, graph, arena).run(outputs);
  }
}

}  // namespace numl::NUML_LEVEL
