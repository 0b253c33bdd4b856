// NuGraph2's message passing. A part of kernels.cpp, which includes it in its namespace.
#pragma once

// NuGraph2: every node has features for each class.

class NuGraph2 {
 public:
  NuGraph2(const Network& network, const GraphView& graph, Arena* arena)
      : network_(network), graph_(graph), arena_(arena) {
    const int64_t hits = whole_tiles(graph.hits), spacepoints = whole_tiles(graph.spacepoints);
    const int64_t c = network.classes, h = network.hit_width, n = network.nexus_width;
    const int64_t edges = graph.edge_offsets[graph.hits];
    const int64_t nexus_edges = graph.down_offsets[graph.hits];
    hits_ = arena->floats(c * hits * h);
    next_hits_ = arena->floats(c * hits * h);
    nexus_ = arena->floats(c * spacepoints * n);
    given_hidden_ = arena->floats(c * hits * h);
    sent_ = arena->floats(hits * n);
    weight_ = arena->floats(c * (edges > nexus_edges ? edges : nexus_edges));
    target_ = arena->floats(c * hits);
    source_ = arena->floats(c * (hits > spacepoints ? hits : spacepoints));
    given_target_ = arena->doubles(c * hits);
    given_source_ = arena->doubles(c * hits);
    planar_target_ = arena->doubles(c * hits);
    planar_source_ = arena->doubles(c * hits);
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
  float* given_hidden_of(int64_t c) { return given_hidden_ + c * graph_.hits * network_.hit_width; }
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
      // What the given features add to the planar gates' scores, the same in all iterations. They
      // may be raw wires and ticks: of scores in the thousands only the classes' differences count,
      // which float32 would round away.
      const Gate& gate = network_.planar.gate[index];
      for (int64_t i = first; i < last; ++i) {
        double target = gate.bias, source = 0;
        for (int64_t f = 0; f < features; ++f) {
          const double value = given_[i * features + f];
          target += value * gate.target[width + f];
          source += value * gate.source[width + f];
        }
        given_target_[c * hits + i] = target;
        given_source_[c * hits + i] = source;
      }
    });
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      const auto fill = [&](int64_t i, float* to) { copy(given_ + i * features, features, to); };
      one_layer<Tanh>(first, last, dense(network_.encoder[index]), of(hits_, c), width, scratch_,
                      fill);
      // And to the planar hidden layers, of which they are the first inputs.
      Dense hidden = dense(network_.planar.hidden[index]);
      hidden.inputs = features;
      one_layer<Identity>(first, last, hidden, given_hidden_of(c), width, scratch_, fill);
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

  // The scores of the planar edges, class by class, less the largest of their edge.
  void score_planar() {
    const int64_t hits = graph_.hits, edges = graph_.edge_offsets[hits];
    for (int64_t i = 0; i < hits; ++i) {
      for (int64_t e = graph_.edge_offsets[i]; e < graph_.edge_offsets[i + 1]; ++e) {
        const double *target = planar_target_ + i, *source = planar_source_ + graph_.edge_source[e];
        double largest = *target + *source;
        for (int64_t c = 1; c < network_.classes; ++c) {
          const double score = target[c * hits] + source[c * hits];
          largest = score > largest ? score : largest;
        }
        for (int64_t c = 0; c < network_.classes; ++c) {
          weight_[c * edges + e] =
              static_cast<float>(target[c * hits] + source[c * hits] - largest);
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
        const int64_t at = c * hits + i;
        planar_target_[at] = given_target_[at] + double{dot(own, gate.target, width)};
        planar_source_[at] = given_source_[at] + double{dot(own, gate.source, width)};
      }
    });
    score_planar();
    over_columns(edges, ClassSoftmax{weight_, network_.classes, edges});
    over_classes([&](int32_t index, int32_t c, int64_t first, int64_t last) {
      const float *table = of(hits_, c), *weight = weight_ + c * edges;
      two_layers<Tanh>(
          first, last, dense_after(block.hidden[index], network_.features, given_hidden_of(c)),
          dense(block.output[index]), of(next_hits_, c), width, scratch_,
          [&](int64_t i, float* to) {
            const int64_t begin = graph_.edge_offsets[i], end = graph_.edge_offsets[i + 1];
            const int32_t* rows = graph_.edge_source;
            copy(table + i * width, width, to);
            to += width;
            weighted_sum({table, rows, weight, width, begin, end}, to);
            weighted_sum({given_, rows, weight, features, begin, end}, to + width);
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
                            add_to(sent_ + graph_.up_hit[e] * n, n, to);
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
                         weighted_sum({table, graph_.down_spacepoint, weight, n, begin, end},
                                      to + width);
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
  float *hits_, *next_hits_, *given_hidden_, *nexus_, *sent_, *weight_, *target_, *source_, *scratch_;
  double *given_target_, *given_source_, *planar_target_, *planar_source_;
};
