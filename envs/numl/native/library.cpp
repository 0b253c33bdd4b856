#include "library.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cluster.h"
#include "network.h"

using namespace numl;

namespace {

// The most that one event may take, and what is kept for the next one.
constexpr size_t kMostMemory = size_t{512} << 20;
constexpr size_t kKeptMemory = size_t{64} << 20;

void say(const std::string& text, char* error, int64_t size) {
  std::snprintf(error, size, "%s", text.c_str());
}

// Runs what may throw, and turns that into a status and a text.
template <class Work>
int32_t guarded(char* error, int64_t size, Work work) {
  try {
    return work();
  } catch (const EventError& refused) {
    say(refused.what(), error, size);
    return NUML_EVENT;
  } catch (const std::bad_alloc&) {
    say("no memory left", error, size);
    return NUML_FAILED;
  } catch (const std::exception& failed) {
    say(failed.what(), error, size);
    return NUML_FAILED;
  }
}

}  // namespace

namespace numl {

void* Arena::bytes(int64_t count) {
  // Vectors are loaded whole, up to 64 bytes behind the last number.
  const size_t wanted = (static_cast<size_t>(count) + 127) / 64 * 64;
  if (blocks_.empty() || used_ + wanted > blocks_.back().size) {
    const size_t size = std::max(wanted, size_t{1} << 20);
    if (total_ + size > kMostMemory) {
      throw EventError("the event is too large: it would take more than " +
                       std::to_string(kMostMemory >> 20) + " MiB");
    }
    blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size + 64]), size});
    total_ += size;
    used_ = 0;
  }
  const auto start = reinterpret_cast<uintptr_t>(blocks_.back().memory.get());
  void* at = blocks_.back().memory.get() + ((start + 63) / 64 * 64 - start) + used_;
  used_ += wanted;
  return at;
}

float* Arena::floats(int64_t count) { return static_cast<float*>(bytes(4 * count)); }

int32_t* Arena::integers(int64_t count) { return static_cast<int32_t*>(bytes(4 * count)); }

void Arena::reset() {
  // One block for what the last event took in several, unless that was unusually much.
  const size_t size = total_;
  if (blocks_.size() > 1 || size > kKeptMemory) {
    blocks_.clear();
    total_ = 0;
    if (size <= kKeptMemory) {
      blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size + 64]), size});
      total_ = size;
    }
  }
  used_ = 0;
}

}  // namespace numl

struct numl_graph {
  Graph graph;
};

struct numl_network {
  Network network;
  std::deque<std::vector<float>> numbers;
  std::deque<std::vector<Layer>> layers;
  std::deque<std::vector<Gate>> gates;
  std::vector<Head> heads;
  numl_clustering clustering;
  Run* run;
  int32_t level;
  Arena arena;
  std::mutex busy;  // the arena is for one event at a time
};

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

#if defined(__x86_64__)
// The level of instructions (x86-64-v3 or -v4, else 1) that the processor has and the system keeps
// registers for. Not by __builtin_cpu_supports, which not every compiler's runtime fills in.
int32_t x86_64_level() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
    return 1;
  }
  const bool fma = (c & bit_FMA) != 0;
  unsigned kept, high;
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    return 1;
  }
  constexpr unsigned v3 = bit_AVX2 | bit_BMI | bit_BMI2;
  constexpr unsigned v4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  if (!fma || (b & v3) != v3 || (kept & 0x06) != 0x06) {
    return 1;
  }
  return (b & v4) == v4 && (kept & 0xe6) == 0xe6 ? 4 : 3;
}
#endif

void choose_level(int32_t wanted, numl_network* network) {
  network->run = baseline::run;
  network->level = 1;
#if defined(__x86_64__)
  const int32_t best = x86_64_level();
  if (best >= 4 && (wanted == 0 || wanted == 4)) {
    network->run = x86_64_v4::run;
    network->level = 4;
  } else if (best >= 3 && (wanted == 0 || wanted == 3)) {
    network->run = x86_64_v3::run;
    network->level = 3;
  }
#endif
}

GraphView view(const Graph& graph) {
  return {graph.planes,
          graph.hits,
          graph.spacepoints,
          graph.features,
          graph.first.data(),
          graph.feature.data(),
          graph.position.data(),
          graph.edge_offsets.data(),
          graph.edge_source.data(),
          graph.up_offsets.data(),
          graph.up_hit.data(),
          graph.down_offsets.data(),
          graph.down_spacepoint.data()};
}

// nugraph's instances: hits that are signal and not background, by their embedding.
void cluster_hits(const numl_network& network, const Graph& graph, float* const* outputs,
                  int32_t* const* clusters) {
  const numl_clustering& rule = network.clustering;
  const int32_t planes = graph.planes;
  const auto numbers = [&](int32_t head, int32_t plane, int32_t hit) {
    return outputs[head * planes + plane] +
           int64_t{hit - graph.first[plane]} * network.heads[head].width;
  };
  // In the order of the request.
  std::vector<std::pair<int32_t, int32_t>> taken;  // row in the request, hit
  for (int32_t plane = 0; plane < planes; ++plane) {
    for (int32_t hit = graph.first[plane]; hit < graph.first[plane + 1]; ++hit) {
      bool take = rule.signal < 0 || *numbers(rule.signal, plane, hit) > 0.5f;
      if (take && rule.semantic >= 0) {
        const float* scores = numbers(rule.semantic, plane, hit);
        const int32_t width = network.heads[rule.semantic].width;
        take = std::max_element(scores, scores + width) - scores != rule.background;
      }
      if (take) {
        taken.push_back({graph.row[hit], hit});
      }
    }
    std::fill_n(clusters[plane], graph.first[plane + 1] - graph.first[plane], -1);
  }
  if (taken.size() > static_cast<size_t>(kMostPoints)) {
    throw EventError("the event has " + std::to_string(taken.size()) +
                     " hits to find instances among: at most " + std::to_string(kMostPoints) +
                     " are taken");
  }
  std::sort(taken.begin(), taken.end());
  const auto plane_of = [&](int32_t hit) {
    return static_cast<int32_t>(std::upper_bound(graph.first.begin(), graph.first.end(), hit) -
                                graph.first.begin()) - 1;
  };
  const int32_t width = network.heads[rule.embedding].width;
  std::vector<float> x;
  for (const auto& [row, hit] : taken) {
    const float* coordinates = numbers(rule.embedding, plane_of(hit), hit);
    x.insert(x.end(), coordinates, coordinates + width);
  }
  std::vector<int32_t> labels(taken.size());
  cluster(x.data(), static_cast<int32_t>(taken.size()), width, rule.eps, rule.min_samples,
          labels.data());
  for (size_t i = 0; i < taken.size(); ++i) {
    const int32_t plane = plane_of(taken[i].second);
    clusters[plane][taken[i].second - graph.first[plane]] = labels[i];
  }
}

bool finite(const numl_network& network, const Graph& graph, float* const* outputs) {
  for (size_t h = 0; h < network.heads.size(); ++h) {
    const Head& head = network.heads[h];
    for (int32_t plane = 0; plane < (head.node == Node::hit ? graph.planes : 1); ++plane) {
      const float* numbers = outputs[h * graph.planes + plane];
      const int64_t rows =
          head.node == Node::hit ? graph.first[plane + 1] - graph.first[plane] : 1;
      for (int64_t i = 0; i < rows * head.width; ++i) {
        if (!std::isfinite(numbers[i])) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

extern "C" {

numl_network* numl_network_new(const numl_card* card, char* error, int64_t size) {
  auto network = std::make_unique<numl_network>();
  const int32_t status = guarded(error, size, [&] {
    Builder(*card, network.get()).build();
    network->clustering = card->clustering;
    choose_level(card->level, network.get());
    return NUML_OK;
  });
  return status == NUML_OK ? network.release() : nullptr;
}

void numl_network_free(numl_network* network) { delete network; }

int32_t numl_network_level(const numl_network* network) { return network->level; }

int32_t numl_infer(numl_network* network, const Event* event, float* const* outputs,
                   int32_t* const* clusters, char* error, int64_t size) {
  const std::lock_guard<std::mutex> lock(network->busy);
  const int32_t status = guarded(error, size, [&] {
    const Graph graph = build_graph(*event);
    network->run(network->network, view(graph), outputs, &network->arena);
    if (!finite(*network, graph, outputs)) {
      return NUML_NOT_FINITE;
    }
    if (network->clustering.embedding >= 0) {
      cluster_hits(*network, graph, outputs, clusters);
    }
    return NUML_OK;
  });
  network->arena.reset();
  return status;
}

numl_graph* numl_graph_new(const Event* event, char* error, int64_t size) {
  numl_graph* graph = nullptr;
  guarded(error, size, [&] {
    graph = new numl_graph{build_graph(*event)};
    return NUML_OK;
  });
  return graph;
}

void numl_graph_free(numl_graph* graph) { delete graph; }

int64_t numl_graph_integers(const numl_graph* graph, int32_t which, const int32_t** data) {
  const Graph& g = graph->graph;
  const std::vector<int32_t>* lists[] = {&g.first,       &g.row,        &g.edge_offsets,
                                         &g.edge_source, &g.up_offsets, &g.up_hit};
  *data = lists[which]->data();
  return static_cast<int64_t>(lists[which]->size());
}

int64_t numl_graph_floats(const numl_graph* graph, int32_t which, const float** data) {
  const std::vector<float>& list = which == 0 ? graph->graph.feature : graph->graph.position;
  *data = list.data();
  return static_cast<int64_t>(list.size());
}

int32_t numl_cluster(const float* x, int32_t points, int32_t width, double eps,
                     int32_t min_samples, int32_t* labels, char* error, int64_t size) {
  return guarded(error, size, [&] {
    cluster(x, points, width, eps, min_samples, labels);
    return NUML_OK;
  });
}
}
