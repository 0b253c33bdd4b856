#include "library.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <new>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cluster.h"
#include "model.h"

using namespace numl;

namespace {

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

struct numl_graph {
  Graph graph;
};

namespace {

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
    build_network(*card, network.get());
    network->clustering = card->clustering;
    choose_level(card->level, network.get());
    return NUML_OK;
  });
  return status == NUML_OK ? network.release() : nullptr;
}

void numl_network_free(numl_network* network) { delete network; }

int32_t numl_network_level(const numl_network* network) { return network->level; }

int32_t numl_infer(numl_network* network, const Event* event, float* const* outputs,
                   int32_t* const* clusters, double* graph_seconds, char* error, int64_t size) {
  const std::lock_guard<std::mutex> lock(network->busy);
  const int32_t status = guarded(error, size, [&] {
    const auto start = std::chrono::steady_clock::now();
    const Graph graph = build_graph(*event);
    *graph_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
