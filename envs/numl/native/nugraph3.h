// NuGraph3's message passing. A part of kernels.cpp, which includes it in its namespace.
#pragma once

// What a block sends: features of the sending nodes, their edges sorted by receiving node, and
// the gate of each edge.
struct Sent {
  const float* table;
  int64_t width;
  const int32_t* rows;
  const int32_t* offsets;
  const float* gate;
  bool shift;

  void aggregate(int64_t node, float* to) const {
    softmax_sum({table, rows, gate, width, offsets[node], offsets[node + 1]}, shift, to);
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
    hits_ = arena->floats(whole_tiles(hits) * h);
    next_hits_ = arena->floats(whole_tiles(hits) * h);
    nexus_ = arena->floats(whole_tiles(spacepoints) * n);
    merged_ = arena->floats(whole_tiles(spacepoints) * merged_width_);
    planes_ = arena->floats(whole_tiles(spacepoints) * n);
    start_ = arena->floats(whole_tiles(spacepoints) * n);
    event_ = arena->floats(e);
    sent_ = arena->floats(n);
    gate_ = arena->floats(edges > nexus_edges ? edges : nexus_edges);
    target_ = arena->floats(hits > segments ? hits : segments);
    source_ = arena->floats(hits > spacepoints ? hits : spacepoints);
    every_ = arena->integers(spacepoints);
    for (int32_t s = 0; s < spacepoints; ++s) {
      every_[s] = s;
    }
    beta_ = coordinates_ = nullptr;
    int64_t widest = h + n + merged_width_ + e + network.features + 3;
    if (network.has_embedding) {
      const int64_t width = network.coordinates.output.outputs;
      beta_ = arena->floats(whole_tiles(hits));
      coordinates_ = arena->floats(whole_tiles(hits) * width);
      widest += width + network.coordinates.hidden.outputs + network.coordinates.heads.outputs +
                network.beta.heads.outputs;
    }
    scratch_ = scratch(arena, 2 * widest, widest, widest);
  }

  void run(float* const* outputs) {
    encode();
    for (int32_t i = 0; i < network_.iterations; ++i) {
      planar(i == 0);
      up();
      through_event();
      down();
      if (network_.has_embedding) {
        update<Sigmoid>(network_.beta, beta_);
        if (network_.coordinates.middle.outputs > 0) {
          update<Identity>(network_.coordinates, coordinates_);
        } else {
          update<Mish>(network_.coordinates, coordinates_);
        }
      }
    }
    if (network_.has_embedding) {
      decode(network_.beta, beta_, Node::beta, outputs);
      decode(network_.coordinates, coordinates_, Node::coordinates, outputs);
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
    if (network_.has_embedding) {
      start<Sigmoid>(network_.beta, beta_);
      start<Mish>(network_.coordinates, coordinates_);
    }
  }

  template <class F>
  void start(const Embedding& embedding, float* to) {
    const int64_t features = network_.features;
    one_layer<F>(0, graph_.hits, dense(embedding.start), to, embedding.start.outputs, scratch_,
                 [&](int64_t i, float* row) { copy(input_ + i * features, features, row); });
  }

  // A vector of the embedding after an iteration, from itself and the hit's features. Last is what
  // follows the last layer.
  template <class Last>
  void update(const Embedding& embedding, float* own) {
    const int64_t width = embedding.output.outputs, h = network_.hit_width;
    const int64_t inner = embedding.hidden.outputs;
    float* const first = scratch_ + kNodes * (width + h + width);
    float* const second = first + kNodes * inner;
    const Dense hidden = dense(embedding.hidden), middle = dense(embedding.middle),
                output = dense(embedding.output);
    over_nodes(
        0, graph_.hits, width + h, width, own, width, scratch_,
        [&](int64_t i, float* row) {
          copy(own + i * width, width, row);
          copy(hits_ + i * h, h, row + width);
        },
        [&](int64_t node, const float* x, int rows, float* to, int64_t stride) {
          apply<Mish>(hidden, node, x, rows, first, inner);
          if (middle.outputs > 0) {
            apply<Mish>(middle, node, first, rows, second, inner);
          }
          apply<Last>(output, node, middle.outputs > 0 ? second : first, rows, to, stride);
        });
  }

  void decode(const Embedding& embedding, const float* own, Node node, float* const* outputs) {
    const int64_t width = embedding.output.outputs, h = network_.hit_width;
    const int64_t stride = embedding.heads.outputs;
    float* const rows = arena_->floats(whole_tiles(graph_.hits) * stride);
    float* const middle = scratch_ + kNodes * (h + width + stride);
    const Dense decoder = dense(embedding.decoder), heads = dense(embedding.heads);
    over_nodes(
        0, graph_.hits, h + width, stride, rows, stride, scratch_,
        [&](int64_t i, float* row) {
          copy(hits_ + i * h, h, row);
          copy(own + i * width, width, row + h);
        },
        [&](int64_t first, const float* x, int count, float* to, int64_t to_stride) {
          apply<Mish>(decoder, first, x, count, middle, h);
          apply<Identity>(heads, first, middle, count, to, to_stride);
        });
    for (int32_t plane = 0; plane < graph_.planes; ++plane) {
      const int64_t first = graph_.first[plane], last = graph_.first[plane + 1];
      deal_out(network_, node, plane, rows + first * stride, last - first, stride, outputs);
    }
  }

  // Planes may share one of a block's two layers and not the other.
  static bool is_by_plane(const Block& block) {
    return block.hidden.count > 1 || block.output.count > 1;
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
    over_hits(graph_, is_by_plane(block), [&](int32_t plane, int64_t first, int64_t last) {
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
    over_hits(graph_, is_by_plane(block), [&](int32_t plane, int64_t first, int64_t last) {
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
        add_to(planes_, spacepoints * n, merged_);
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
                       softmax_sum(messages, shift, to);
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
  float *beta_, *coordinates_;  // the instance embedding
  float *gate_, *target_, *source_, *scratch_;
  int32_t* every_;
};
