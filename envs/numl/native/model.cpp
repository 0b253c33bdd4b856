#include "model.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

using namespace numl;

namespace {

// Puts a network together from its weights.
class Builder {
 public:
  Builder(const numl_card& card, numl_network* to) : card_(card), to_(to) {
    for (int32_t i = 0; i < card.weights; ++i) {
      weights_[card.weight[i].name] = &card.weight[i];
    }
  }

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
    n.mean = card_.mean ? keep({card_.mean, card_.mean + norms}) : nullptr;
    n.std = card_.std ? keep({card_.std, card_.std + norms}) : nullptr;
    const int32_t h = n.hit_width, f = n.features, x = n.nexus_width, e = n.event_width;
    if (n.kind == Kind::nugraph3) {
      const int32_t merged = n.nexus == Nexus::concat ? n.planes * x : x;
      n.encoder = layers("encoder", 1, f, h);
      if (card_.starts_from_position) {
        n.nexus_encoder = layers("nexus_encoder", 1, 3, x, true)[0];
      }
      n.planar = block("planar", 1, h, h, h);
      n.up = block("up", 1, x, h, x);
      n.to_event = block("to_event", 1, e, merged, e, true);
      n.from_event = block("from_event", 1, merged, e, x, true);
      n.down = block("down", 1, h, x, h);
      join_first();
    } else {
      const int32_t c = n.classes;
      n.encoder = layers("encoder", c, f, h);
      n.planar = block("planar", c, h + f, h + f, h);
      n.down = block("down", c, h, x, h);
      split_nexus();
    }
    join_heads();
  }

 private:
  const numl_weight& weight(const std::string& name) const {
    const auto found = weights_.find(name);
    if (found == weights_.end()) {
      throw std::runtime_error("weight " + name + " is missing");
    }
    return *found->second;
  }

  const float* keep(std::vector<float> numbers) {
    // Vectors are loaded whole: some room behind the last number.
    numbers.resize(numbers.size() + 16);
    to_->numbers.push_back(std::move(numbers));
    return to_->numbers.back().data();
  }

  // [outputs, inputs] as [inputs, outputs].
  Layer layer(const float* data, const float* bias, int32_t inputs, int32_t outputs) {
    std::vector<float> turned(size_t{1} * inputs * outputs);
    for (int32_t out = 0; out < outputs; ++out) {
      for (int32_t in = 0; in < inputs; ++in) {
        turned[size_t{1} * in * outputs + out] = data[size_t{1} * out * inputs + in];
      }
    }
    std::vector<float> start(outputs, 0.0f);
    if (bias != nullptr) {
      std::copy(bias, bias + outputs, start.begin());
    }
    return {keep(std::move(turned)), keep(std::move(start)), inputs, outputs};
  }

  PerPlane<Layer> kept(std::vector<Layer> layers) {
    to_->layers.push_back(std::move(layers));
    return {to_->layers.back().data(), static_cast<int32_t>(to_->layers.back().size())};
  }

  // `each` layers for a set of weights; a single one has no sets.
  PerPlane<Layer> layers(const std::string& name, int32_t each, int32_t inputs, int32_t outputs,
                         bool single = false) {
    const numl_weight &w = weight(name + ".weight"), &b = weight(name + ".bias");
    const int32_t count = (single ? 1 : w.sets) * each;
    std::vector<Layer> found;
    for (int32_t i = 0; i < count; ++i) {
      found.push_back(layer(w.data + size_t{1} * i * inputs * outputs,
                            b.data + size_t{1} * i * outputs, inputs, outputs));
    }
    return kept(std::move(found));
  }

  // nugraph3's hidden layers take what is received first, nugraph2's the node's own: as they come.
  Block block(const std::string& name, int32_t each, int32_t target, int32_t source,
              int32_t outputs, bool single = false) {
    const numl_weight &w = weight(name + ".gate.weight"), &b = weight(name + ".gate.bias");
    const int32_t count = (single ? 1 : w.sets) * each;
    std::vector<Gate> gates;
    for (int32_t i = 0; i < count; ++i) {
      const float* from = w.data + size_t{1} * i * (target + source);
      gates.push_back({keep({from, from + target}),
                       keep({from + target, from + target + source}), b.data[i]});
    }
    to_->gates.push_back(std::move(gates));
    return {{to_->gates.back().data(), count},
            layers(name + ".hidden", each, target + source, outputs, single),
            layers(name + ".output", each, outputs, outputs, single)};
  }

  // W_own (W_encoder f + b_encoder) + b_hidden as one layer on the input features f.
  void join_first() {
    Network& n = to_->network;
    const int32_t h = n.hit_width, f = n.features;
    std::vector<Layer> found;
    for (int32_t set = 0; set < std::max(n.encoder.count, n.planar.hidden.count); ++set) {
      const Layer &encoder = n.encoder[set], &hidden = n.planar.hidden[set];
      const float* own = hidden.weight + size_t{1} * h * h;
      std::vector<float> weights(size_t{1} * h * f), biases(h);
      for (int32_t out = 0; out < h; ++out) {
        for (int32_t in = 0; in <= f; ++in) {
          const float* column = in < f ? encoder.weight + size_t{1} * in * h : encoder.bias;
          double sum = in < f ? 0.0 : hidden.bias[out];
          for (int32_t k = 0; k < h; ++k) {
            sum += double{own[size_t{1} * k * h + out]} * column[k];
          }
          (in < f ? weights[size_t{1} * out * f + in] : biases[out]) = static_cast<float>(sum);
        }
      }
      found.push_back(layer(weights.data(), biases.data(), f, h));
    }
    n.first_own = kept(std::move(found));
  }

  void split_nexus() {
    Network& n = to_->network;
    const int32_t h = n.hit_width, x = n.nexus_width, c = n.classes, all = n.planes * h;
    const numl_weight& w = weight("nexus.hidden.weight");
    std::vector<Layer> parts;
    std::vector<float> part(size_t{1} * x * h);
    for (int32_t plane = 0; plane < n.planes; ++plane) {
      for (int32_t k = 0; k < c; ++k) {
        for (int32_t out = 0; out < x; ++out) {
          const float* from = w.data + (size_t{1} * k * x + out) * all + plane * h;
          std::copy(from, from + h, part.data() + size_t{1} * out * h);
        }
        parts.push_back(layer(part.data(), nullptr, h, x));
      }
    }
    n.nexus_hidden = kept(std::move(parts));
    const numl_weight& bias = weight("nexus.hidden.bias");
    n.nexus_bias = keep({bias.data, bias.data + size_t{1} * c * x});
    n.nexus_output = layers("nexus.output", c, x, x, true).each;
  }

  // All heads of a node as one layer, as wide as the widest vectors are.
  void join_heads() {
    Network& n = to_->network;
    int32_t widths[2] = {0, 0};
    int32_t sets = 1;
    for (int32_t i = 0; i < card_.heads; ++i) {
      const numl_head& head = card_.head[i];
      to_->heads.push_back({static_cast<Node>(head.node), head.width,
                            static_cast<Activation>(head.activation), widths[head.node]});
      widths[head.node] += head.width;
      if (head.node == 0 && weight(name(head) + ".weight").sets > 1) {
        sets = n.planes;
      }
    }
    n.heads = to_->heads.data();
    n.head_count = card_.heads;
    std::vector<Layer> hit;
    for (int32_t set = 0; widths[0] > 0 && set < sets; ++set) {
      hit.push_back(joined(Node::hit, set, n.classes * n.hit_width, widths[0]));
    }
    n.hit_heads = kept(std::move(hit));
    if (widths[1] > 0) {
      n.event_heads = joined(Node::event, 0, n.event_width, widths[1]);
    }
  }

  static std::string name(const numl_head& head) { return std::string("heads.") + head.name; }

  Layer joined(Node node, int32_t set, int32_t inputs, int32_t outputs) {
    const int32_t padded = (outputs + 15) / 16 * 16;
    std::vector<float> weights(size_t{1} * padded * inputs), biases(padded);
    for (int32_t i = 0; i < card_.heads; ++i) {
      const numl_head& head = card_.head[i];
      if (static_cast<Node>(head.node) != node) {
        continue;
      }
      const numl_weight &w = weight(name(head) + ".weight"), &b = weight(name(head) + ".bias");
      const int32_t from = node == Node::hit && w.sets > 1 ? set : 0;
      const int32_t column = to_->heads[i].column;
      const size_t numbers = size_t{1} * head.width * inputs;
      std::copy_n(w.data + from * numbers, numbers, weights.data() + size_t{1} * column * inputs);
      std::copy_n(b.data + size_t{1} * from * head.width, head.width, biases.data() + column);
    }
    return layer(weights.data(), biases.data(), inputs, padded);
  }

  const numl_card& card_;
  numl_network* to_;
  std::map<std::string, const numl_weight*> weights_;
};

}  // namespace

void build_network(const numl_card& card, numl_network* to) { Builder(card, to).build(); }
