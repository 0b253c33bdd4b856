#include "model.h"

using namespace numl;

namespace {

// Builds a network from its weights.
class Builder {
 public:
  Builder(const numl_card& card, numl_network* to)
      : card_(card), to_(to), arena_(&to->weights), heads_(arena_) {}

  void build() {
    Network& n = to_->network;
    n.kind = card_.kind == 3 ? Kind::nugraph3 : Kind::nugraph2;
    n.nexus = static_cast<Nexus>(card_.nexus);
    n.iterations = card_.iterations;
    n.planes = card_.planes;
    n.features = card_.features;
    n.classes = card_.classes;
    n.hit_width = card_.hit_width;
    n.nexus_width = card_.nexus_width;
    n.event_width = card_.event_width;
    const int64_t norms = int64_t{card_.planes} * card_.features;
    n.mean = card_.mean ? keep(card_.mean, norms) : nullptr;
    n.std = card_.std ? keep(card_.std, norms) : nullptr;
    const int32_t h = n.hit_width, f = n.features, x = n.nexus_width, e = n.event_width;
    if (n.kind == Kind::nugraph3) {
      const int32_t merged = n.nexus == Nexus::concat ? n.planes * x : x;
      n.encoder = layers("encoder", "", 1, f, h);
      if (card_.starts_from_position) {
        n.nexus_encoder = layers("nexus_encoder", "", 1, 3, x, true)[0];
      }
      n.planar = block("planar", 1, h, h, h);
      n.up = block("up", 1, x, h, x);
      n.to_event = block("to_event", 1, e, merged, e, true);
      n.from_event = block("from_event", 1, merged, e, x, true);
      n.down = block("down", 1, h, x, h);
      join_first();
      n.has_embedding = card_.embedding_layers > 0;
      if (n.has_embedding) {
        n.beta = embedding("beta", 1);
        n.coordinates = embedding("coordinates", card_.embedding_width);
      }
    } else {
      const int32_t c = n.classes;
      n.encoder = layers("encoder", "", c, f, h);
      n.planar = block("planar", c, h + f, h + f, h);
      n.down = block("down", c, h, x, h);
      given_first();
      split_nexus();
    }
    join_heads();
  }

 private:
  // The weight whose name consists of these.
  const numl_weight& weight(const char* part, const char* name, const char* kind = "") const {
    const size_t first = strlen(part), second = strlen(name);
    for (int32_t i = 0; i < card_.weights; ++i) {
      const char* found = card_.weight[i].name;
      if (strncmp(found, part, first) == 0 && strncmp(found + first, name, second) == 0 &&
          strcmp(found + first + second, kind) == 0) {
        return card_.weight[i];
      }
    }
    arena_->fail("weight %s%s%s is missing", part, name, kind);
  }

  // Weights and biases of a layer: each set of weights has its biases.
  struct Pair {
    const numl_weight &weight, &bias;
    int32_t sets;
  };
  Pair pair(const char* part, const char* name, bool single = false) const {
    const numl_weight &w = weight(part, name, ".weight"), &b = weight(part, name, ".bias");
    if (!single && w.sets != b.sets) {
      arena_->fail("weight %s%s.bias is for %d %s, but %s%s.weight is for %d", part, name, b.sets,
                   b.sets == 1 ? "plane" : "planes", part, name, w.sets);
    }
    return {w, b, single ? 1 : w.sets};
  }

  // Some padding follows the last number: vectors are loaded whole.
  float* zeros(int64_t count) {
    float* const numbers = arena_->floats(count + 16);
    memset(numbers, 0, (count + 16) * sizeof(float));
    return numbers;
  }

  const float* keep(const float* numbers, int64_t count) {
    float* const kept = zeros(count);
    memcpy(kept, numbers, count * sizeof(float));
    return kept;
  }

  // [outputs, inputs] as [inputs, outputs].
  Layer layer(const float* data, const float* bias, int32_t inputs, int32_t outputs) {
    float* const turned = zeros(int64_t{inputs} * outputs);
    for (int32_t out = 0; out < outputs; ++out) {
      for (int32_t in = 0; in < inputs; ++in) {
        turned[int64_t{in} * outputs + out] = data[int64_t{out} * inputs + in];
      }
    }
    const float* const start = bias == nullptr ? zeros(outputs) : keep(bias, outputs);
    return {turned, start, inputs, outputs};
  }

  template <class T>
  static PerPlane<T> kept(const List<T>& layers) {
    return {layers.data(), static_cast<int32_t>(layers.size())};
  }

  // `each` layers for a set of weights; a single one has no sets.
  PerPlane<Layer> layers(const char* part, const char* name, int32_t each, int32_t inputs,
                         int32_t outputs, bool single = false) {
    const Pair all = pair(part, name, single);
    List<Layer> found(arena_);
    for (int32_t i = 0; i < all.sets * each; ++i) {
      found.push_back(layer(all.weight.data + int64_t{i} * inputs * outputs,
                            all.bias.data + int64_t{i} * outputs, inputs, outputs));
    }
    return kept(found);
  }

  // nugraph3's hidden layers take received features first, nugraph2's the node's own: kept as is.
  Block block(const char* part, int32_t each, int32_t target, int32_t source, int32_t outputs,
              bool single = false) {
    const Pair all = pair(part, ".gate", single);
    List<Gate> gates(arena_);
    for (int32_t i = 0; i < all.sets * each; ++i) {
      const float* from = all.weight.data + int64_t{i} * (target + source);
      gates.push_back({keep(from, target), keep(from + target, source), all.bias.data[i]});
    }
    return {kept(gates),
            layers(part, ".hidden", each, target + source, outputs, single),
            layers(part, ".output", each, outputs, outputs, single)};
  }

  Embedding embedding(const char* part, int32_t width) {
    const Network& n = to_->network;
    const int32_t h = n.hit_width, x = card_.embedding_hidden;
    const auto one = [&](const char* name, int32_t inputs, int32_t outputs) {
      return layers(part, name, 1, inputs, outputs, true)[0];
    };
    return {one(".start", n.features, width),
            one(".hidden", width + h, x),
            card_.embedding_layers > 2 ? one(".middle", x, x) : Layer{},
            one(".output", x, width),
            one(".decoder", h + width, h),
            {}};
  }

  // W_own (W_encoder f + b_encoder) + b_hidden as one layer on the input features f.
  void join_first() {
    Network& n = to_->network;
    const int32_t h = n.hit_width, f = n.features;
    List<Layer> found(arena_);
    const int32_t most = n.planar.hidden.count;
    const int32_t sets = n.encoder.count > most ? n.encoder.count : most;
    for (int32_t set = 0; set < sets; ++set) {
      const Layer &encoder = n.encoder[set], &hidden = n.planar.hidden[set];
      const float* own = hidden.weight + int64_t{h} * h;
      List<float> weights(arena_, int64_t{h} * f), biases(arena_, h);
      for (int32_t out = 0; out < h; ++out) {
        for (int32_t in = 0; in <= f; ++in) {
          const float* column = in < f ? encoder.weight + int64_t{in} * h : encoder.bias;
          double sum = in < f ? 0.0 : hidden.bias[out];
          for (int32_t k = 0; k < h; ++k) {
            sum += double{own[int64_t{k} * h + out]} * column[k];
          }
          (in < f ? weights[int64_t{out} * f + in] : biases[out]) = static_cast<float>(sum);
        }
      }
      found.push_back(layer(weights.data(), biases.data(), f, h));
    }
    n.first_own = kept(found);
  }

  // Puts what a hit was given before its features in the inputs of planar's hidden layers: what it
  // adds is the same in all iterations.
  void given_first() {
    Network& n = to_->network;
    const int64_t own = int64_t{n.hit_width} * n.hit_width;
    const int64_t given = int64_t{n.features} * n.hit_width;
    List<Layer> found(arena_);
    for (int32_t i = 0; i < n.planar.hidden.count; ++i) {
      const Layer& layer = n.planar.hidden[i];
      float* const weight = zeros(2 * (own + given));
      memcpy(weight, layer.weight + own, given * sizeof(float));
      memcpy(weight + given, layer.weight, own * sizeof(float));
      memcpy(weight + given + own, layer.weight + own + given, (own + given) * sizeof(float));
      found.push_back({weight, layer.bias, layer.inputs, layer.outputs});
    }
    n.planar.hidden = kept(found);
  }

  void split_nexus() {
    Network& n = to_->network;
    const int32_t h = n.hit_width, x = n.nexus_width, c = n.classes, all = n.planes * h;
    const numl_weight& w = weight("nexus", ".hidden.weight");
    List<Layer> parts(arena_);
    List<float> part(arena_, int64_t{x} * h);
    for (int32_t plane = 0; plane < n.planes; ++plane) {
      for (int32_t k = 0; k < c; ++k) {
        for (int32_t out = 0; out < x; ++out) {
          const float* from = w.data + (int64_t{k} * x + out) * all + plane * h;
          memcpy(part.data() + int64_t{out} * h, from, h * sizeof(float));
        }
        parts.push_back(layer(part.data(), nullptr, h, x));
      }
    }
    n.nexus_hidden = kept(parts);
    const numl_weight& bias = weight("nexus", ".hidden.bias");
    n.nexus_bias = keep(bias.data, int64_t{c} * x);
    n.nexus_output = layers("nexus", ".output", c, x, x, true).each;
  }

  // All heads of a node as one layer, as wide as the widest vectors are.
  void join_heads() {
    Network& n = to_->network;
    int32_t widths[4] = {};
    int32_t sets = 1;
    for (int32_t i = 0; i < card_.heads; ++i) {
      const numl_head& head = card_.head[i];
      heads_.push_back({static_cast<Node>(head.node), head.width,
                            static_cast<Activation>(head.activation), widths[head.node]});
      widths[head.node] += head.width;
      if (head.node == 0 && weight("heads.", head.name, ".weight").sets > 1) {
        sets = n.planes;
      }
    }
    n.heads = heads_.data();
    n.head_count = card_.heads;
    List<Layer> hit(arena_);
    for (int32_t set = 0; widths[0] > 0 && set < sets; ++set) {
      hit.push_back(joined(Node::hit, set, n.classes * n.hit_width, widths[0]));
    }
    n.hit_heads = kept(hit);
    if (widths[1] > 0) {
      n.event_heads = joined(Node::event, 0, n.event_width, widths[1]);
    }
    if (n.has_embedding) {
      n.beta.heads = joined(Node::beta, 0, n.hit_width, widths[2]);
      n.coordinates.heads = joined(Node::coordinates, 0, n.hit_width, widths[3]);
    }
  }

  Layer joined(Node node, int32_t set, int32_t inputs, int32_t outputs) {
    const int32_t padded = (outputs + 15) / 16 * 16;
    List<float> weights(arena_, int64_t{padded} * inputs), biases(arena_, padded);
    for (int32_t i = 0; i < card_.heads; ++i) {
      const numl_head& head = card_.head[i];
      if (static_cast<Node>(head.node) != node) {
        continue;
      }
      const Pair all = pair("heads.", head.name, node == Node::event);
      const int32_t from = all.sets > 1 ? set : 0;
      const int32_t column = heads_[i].column;
      const int64_t numbers = int64_t{head.width} * inputs;
      memcpy(weights.data() + int64_t{column} * inputs, all.weight.data + from * numbers,
             numbers * sizeof(float));
      memcpy(biases.data() + column, all.bias.data + int64_t{from} * head.width,
             head.width * sizeof(float));
    }
    return layer(weights.data(), biases.data(), inputs, padded);
  }

  const numl_card& card_;
  numl_network* to_;
  Arena* arena_;
  List<Head> heads_;
};

}  // namespace

void build_network(const numl_card& card, numl_network* to) { Builder(card, to).build(); }
