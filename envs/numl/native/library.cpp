#include "library.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cluster.h"
#include "model.h"

using namespace numl;

struct numl_graph {
  Graph graph;
  Arena arena;
};

namespace {

#if defined(__x86_64__)
// The instruction level (x86-64-v3 or -v4, else 1) that the processor has and the system saves
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

void choose_level([[maybe_unused]] int32_t wanted, numl_network* network) {
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

double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Taken {
  int32_t row, hit, plane;  // the row in the request
};

// nugraph's instances: hits that are signal and not background, by their embedding.
void cluster_hits(const numl_network& network, const Graph& graph, float* const* outputs,
                  int32_t* const* clusters, Arena* arena) {
  const numl_clustering& rule = network.clustering;
  const int32_t planes = graph.planes;
  const auto numbers = [&](int32_t head, int32_t plane, int32_t hit) {
    return outputs[head * planes + plane] +
           int64_t{hit - graph.first[plane]} * network.network.heads[head].width;
  };
  // In the order of the request.
  List<Taken> taken(arena);
  for (int32_t plane = 0; plane < planes; ++plane) {
    for (int32_t hit = graph.first[plane]; hit < graph.first[plane + 1]; ++hit) {
      bool take = rule.signal < 0 || *numbers(rule.signal, plane, hit) > 0.5f;
      if (take && rule.semantic >= 0) {
        const float* scores = numbers(rule.semantic, plane, hit);
        const int32_t width = network.network.heads[rule.semantic].width;
        int32_t best = 0;
        for (int32_t k = 1; k < width; ++k) {
          best = scores[k] > scores[best] ? k : best;
        }
        take = best != rule.background;
      }
      if (take) {
        taken.push_back({graph.row[hit], hit, plane});
      }
    }
    for (int32_t i = 0; i < graph.first[plane + 1] - graph.first[plane]; ++i) {
      clusters[plane][i] = -1;
    }
  }
  sort(arena, &taken, [](const Taken& a, const Taken& b) { return a.row < b.row; });
  const int32_t width = network.network.heads[rule.embedding].width;
  const int32_t points = static_cast<int32_t>(taken.size());
  List<float> x(arena);
  for (const Taken& each : taken) {
    const float* coordinates = numbers(rule.embedding, each.plane, each.hit);
    for (int32_t k = 0; k < width; ++k) {
      x.push_back(coordinates[k]);
    }
  }
  List<int32_t> labels(arena, points);
  cluster(x.data(), points, width, rule.eps, rule.min_samples, labels.data(), arena);
  for (int32_t i = 0; i < points; ++i) {
    clusters[taken[i].plane][taken[i].hit - graph.first[taken[i].plane]] = labels[i];
  }
}

bool finite(const numl_network& network, const Graph& graph, float* const* outputs) {
  for (int32_t h = 0; h < network.network.head_count; ++h) {
    const Head& head = network.network.heads[h];
    for (int32_t plane = 0; plane < (head.node == Node::event ? 1 : graph.planes); ++plane) {
      const float* numbers = outputs[h * graph.planes + plane];
      const int64_t rows =
          head.node == Node::event ? 1 : graph.first[plane + 1] - graph.first[plane];
      for (int64_t i = 0; i < rows * head.width; ++i) {
        if (!__builtin_isfinite(numbers[i])) {
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
  auto* network = static_cast<numl_network*>(malloc(sizeof(numl_network)));
  if (network == nullptr) {
    snprintf(error, size, "no memory left");
    return nullptr;
  }
  *network = {{}, card->clustering, nullptr, 0, Arena(SIZE_MAX), Arena(), PTHREAD_MUTEX_INITIALIZER};
  const Status status = network->weights.attempt(error, size, [=] {
    build_network(*card, network);
    choose_level(card->level, network);
    return kOk;
  });
  if (status != kOk) {
    numl_network_free(network);
    return nullptr;
  }
  return network;
}

void numl_network_free(numl_network* network) {
  network->weights.free();
  network->events.free();
  pthread_mutex_destroy(&network->busy);
  free(network);
}

int32_t numl_network_level(const numl_network* network) { return network->level; }

int32_t numl_infer(numl_network* network, const Event* event, float* const* outputs,
                   int32_t* const* clusters, double* graph_seconds, char* error, int64_t size) {
  pthread_mutex_lock(&network->busy);
  Arena* const arena = &network->events;
  const Status status = arena->attempt(error, size, [=] {
    const double start = seconds();
    const Graph graph = build_graph(*event, arena);
    *graph_seconds = seconds() - start;
    network->run(network->network, view(graph), outputs, arena);
    if (!finite(*network, graph, outputs)) {
      return kNotFinite;
    }
    if (network->clustering.embedding >= 0) {
      cluster_hits(*network, graph, outputs, clusters, arena);
    }
    return kOk;
  });
  arena->reset();
  pthread_mutex_unlock(&network->busy);
  return status;
}

numl_graph* numl_graph_new(const Event* event, char* error, int64_t size) {
  auto* made = static_cast<numl_graph*>(malloc(sizeof(numl_graph)));
  if (made == nullptr) {
    snprintf(error, size, "no memory left");
    return nullptr;
  }
  made->arena = Arena();
  const Status status = made->arena.attempt(error, size, [=] {
    made->graph = build_graph(*event, &made->arena);
    return kOk;
  });
  if (status != kOk) {
    numl_graph_free(made);
    return nullptr;
  }
  return made;
}

void numl_graph_free(numl_graph* graph) {
  graph->arena.free();
  free(graph);
}

int64_t numl_graph_integers(const numl_graph* graph, int32_t which, const int32_t** data) {
  const Graph& g = graph->graph;
  const List<int32_t>* lists[] = {&g.first,       &g.row,        &g.edge_offsets,
                                         &g.edge_source, &g.up_offsets, &g.up_hit};
  *data = lists[which]->data();
  return lists[which]->size();
}

int64_t numl_graph_floats(const numl_graph* graph, int32_t which, const float** data) {
  const List<float>& list = which == 0 ? graph->graph.feature : graph->graph.position;
  *data = list.data();
  return list.size();
}

int32_t numl_cluster(const float* x, int32_t points, int32_t width, double eps,
                     int32_t min_samples, int32_t* labels, char* error, int64_t size) {
  Arena arena;
  Arena* const memory = &arena;
  const Status status = memory->attempt(error, size, [=] {
    cluster(x, points, width, eps, min_samples, labels, memory);
    return kOk;
  });
  memory->free();
  return status;
}
}
