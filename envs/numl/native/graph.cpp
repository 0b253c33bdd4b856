#include "graph.h"

#include "delaunay.h"

namespace numl {
namespace {

struct Range {
  int32_t begin, end;
};

// Finds the hits of one plane by their id, a few lookups in a table where ids are dense.
class HitsById {
 public:
  HitsById(const Graph& graph, const Event& event, int32_t plane, Arena* arena)
      : first_(graph.first[plane]),
        count_(graph.first[plane + 1] - first_),
        ids_(arena, count_),
        order_(numbers_to(arena, count_)),
        place_(arena) {
    bool sorted = true;
    for (int32_t i = 0; i < count_; ++i) {
      ids_[i] = event.hit_id[graph.row[first_ + i]];
      sorted &= i == 0 || ids_[i - 1] <= ids_[i];
    }
    if (!sorted) {
      sort(arena, &order_, [this](int32_t a, int32_t b) { return ids_[a] < ids_[b]; });
      sort(arena, &ids_, [](int32_t a, int32_t b) { return a < b; });
    }
    const int64_t range = count_ ? int64_t{ids_.back()} - ids_[0] + 1 : 0;
    if (range <= 8 * int64_t{count_} + 64) {
      place_.assign(range + 1, count_);
      int32_t at = 0;
      for (int64_t id = 0; id <= range; ++id) {
        while (at < count_ && int64_t{ids_[at]} - ids_[0] < id) {
          ++at;
        }
        place_[id] = at;
      }
    }
  }

  // The range of hits with an id, in `hit`.
  Range find(int32_t id) const {
    if (count_ == 0 || id < ids_[0] || id > ids_.back()) {
      return {0, 0};
    }
    if (!place_.empty()) {
      const int64_t at = int64_t{id} - ids_[0];
      return {place_[at], place_[at + 1]};
    }
    return {place_of(ids_, id), place_of(ids_, int64_t{id} + 1)};
  }

  int32_t hit(int32_t place) const { return first_ + order_[place]; }

 private:
  int32_t first_, count_;
  List<int32_t> ids_, order_, place_;
};

void limit(const char* what, int32_t count, int32_t most, Arena* arena) {
  if (count > most) {
    arena->refuse("the event has %d %s: at most %d are taken", count, what, most);
  }
}

void group_hits(const Event& event, Graph* graph, Arena* arena) {
  graph->first.assign(event.planes + 1, 0);
  for (int32_t i = 0; i < event.hits; ++i) {
    ++graph->first[event.plane[i] + 1];
  }
  accumulate(&graph->first);
  List<int32_t> next(arena, graph->first.data(), event.planes);
  graph->row.resize(event.hits);
  for (int32_t i = 0; i < event.hits; ++i) {
    graph->row[next[event.plane[i]]++] = i;
  }
}

void take_features(const Event& event, Graph* graph) {
  graph->feature.resize(int64_t{event.hits} * event.features);
  for (int32_t f = 0; f < event.features; ++f) {
    const Feature& feature = event.feature[f];
    if (feature.column == nullptr) {
      continue;
    }
    float* to = graph->feature.data() + f;
    for (int32_t i = 0; i < event.hits; ++i, to += event.features) {
      const int32_t row = graph->row[i];
      const float value =
          feature.from == From::integers
              ? static_cast<float>(static_cast<const int32_t*>(feature.column)[row])
              : static_cast<const float*>(feature.column)[row];
      *to = value * feature.scale;
    }
  }
}

void connect_planes(const Event& event, Graph* graph, Arena* arena) {
  List<float> xy(arena);
  List<Edge> edges(arena), all(arena);
  for (int32_t plane = 0; plane < event.planes; ++plane) {
    const int32_t first = graph->first[plane], hits = graph->first[plane + 1] - first;
    xy.resize(2 * int64_t{hits});
    for (int32_t i = 0; i < hits; ++i) {
      const int32_t row = graph->row[first + i];
      // Products of floats, as in pynuml.
      xy[2 * i] = static_cast<float>(event.wire[row]) * event.wire_scale;
      xy[2 * i + 1] = event.time[row] * event.time_scale;
    }
    edges.clear();
    delaunay(xy.data(), hits, &edges, arena);
    for (const Edge& edge : edges) {
      all.push_back({first + edge.first, first + edge.second});
      all.push_back({first + edge.second, first + edge.first});
    }
  }
  // Sorted by the sending node, then, keeping that order, by the receiving one.
  List<int32_t> offsets(arena, event.hits + 2);
  for (const Edge& edge : all) {
    ++offsets[edge.first + 2];
  }
  accumulate(&offsets);
  List<Edge> by_source(arena, all.size());
  for (const Edge& edge : all) {
    by_source[offsets[edge.first + 1]++] = edge;
  }
  offsets.assign(event.hits + 2, 0);
  for (const Edge& edge : by_source) {
    ++offsets[edge.second + 2];
  }
  accumulate(&offsets);
  graph->edge_source.resize(all.size());
  for (const Edge& edge : by_source) {
    graph->edge_source[offsets[edge.second + 1]++] = edge.first;
  }
  // An inner edge comes from two of QHull's triangles: once is enough.
  graph->edge_offsets.assign(event.hits + 1, 0);
  int32_t kept = 0;
  for (int32_t hit = 0; hit < event.hits; ++hit) {
    const int32_t begin = kept;
    for (int32_t e = offsets[hit]; e < offsets[hit + 1]; ++e) {
      const int32_t source = graph->edge_source[e];
      if (kept == begin || graph->edge_source[kept - 1] != source) {
        graph->edge_source[kept++] = source;
      }
    }
    graph->edge_offsets[hit + 1] = kept;
  }
  graph->edge_source.resize(kept);
}

// The two hits of a plane that are nearest to each, and the distance to the first. The nearest is
// a neighbour in the triangulation; the second is one too, or a neighbour of the nearest. A hit is
// the nearest of few others, so that this takes time in proportion to the number of edges.
struct Nearest {
  int32_t hit[2];
  double square[2];

  void offer(int32_t other, double distance) {
    if (other == hit[0] || distance >= square[1]) {
      return;
    }
    const bool first = distance < square[0];
    hit[1] = first ? hit[0] : other;
    square[1] = first ? square[0] : distance;
    if (first) {
      hit[0] = other;
      square[0] = distance;
    }
  }
};

// Planes of so few hits may have no triangulation: all of their hits are compared.
constexpr int32_t kFewHits = 16;

void extend_features(const Event& event, Graph* graph, Arena* arena) {
  bool wanted = false;
  for (int32_t f = 0; f < event.features; ++f) {
    wanted |= event.feature[f].column == nullptr;
  }
  if (!wanted) {
    return;
  }
  List<float> wire(arena, event.hits), time(arena, event.hits);
  for (int32_t i = 0; i < event.hits; ++i) {
    wire[i] = static_cast<float>(event.wire[graph->row[i]]) * event.wire_scale;
    time[i] = event.time[graph->row[i]] * event.time_scale;
  }
  const auto square = [&](int32_t a, int32_t b) {
    const double w = double{wire[a]} - wire[b], t = double{time[a]} - time[b];
    return w * w + t * t;
  };
  for (int32_t plane = 0; plane < event.planes; ++plane) {
    const int32_t begin = graph->first[plane], end = graph->first[plane + 1];
    for (int32_t hit = begin; hit < end; ++hit) {
      Nearest near{{hit, hit}, {__builtin_inf(), __builtin_inf()}};
      const auto offer_neighbours = [&](int32_t of) {
        for (int32_t e = graph->edge_offsets[of]; e < graph->edge_offsets[of + 1]; ++e) {
          const int32_t other = graph->edge_source[e];
          if (other != hit) {
            near.offer(other, square(hit, other));
          }
        }
      };
      if (end - begin <= kFewHits) {
        for (int32_t other = begin; other < end; ++other) {
          if (other != hit) {
            near.offer(other, square(hit, other));
          }
        }
      } else {
        offer_neighbours(hit);
        offer_neighbours(near.hit[0]);
      }
      const int32_t degree = graph->edge_offsets[hit + 1] - graph->edge_offsets[hit];
      const auto [first, second] = near.hit;
      float* const to = graph->feature.data() + int64_t{hit} * event.features;
      for (int32_t f = 0; f < event.features; ++f) {
        switch (event.feature[f].from) {
          case From::wire_difference:
            to[f] = 2 * wire[hit] - wire[second] - wire[first];
            break;
          case From::time_difference:
            to[f] = 2 * time[hit] - time[second] - time[first];
            break;
          case From::degree:
            to[f] = degree > 1 ? static_cast<float>(__builtin_log(degree)) : 0.0f;
            break;
          case From::distance:
            to[f] = first == hit ? 0.0f : static_cast<float>(__builtin_sqrt(near.square[0]));
            break;
          default:
            break;
        }
      }
    }
  }
}

void connect_spacepoints(const Event& event, Graph* graph, Arena* arena) {
  const int64_t allowed = kNexusEdges * event.planes * event.spacepoints;
  graph->up_offsets.assign(int64_t{event.planes} * event.spacepoints + 1, 0);
  int64_t edges = 0;
  int64_t segment = 0;
  List<HitsById> planes(arena);
  for (int32_t plane = 0; plane < event.planes; ++plane) {
    planes.push_back(HitsById(*graph, event, plane, arena));
    for (int32_t s = 0; s < event.spacepoints; ++s) {
      const auto [begin, end] = planes.back().find(event.spacepoint_hit_id[plane][s]);
      edges += end - begin;
      graph->up_offsets[++segment] = static_cast<int32_t>(edges < INT32_MAX ? edges : INT32_MAX);
    }
  }
  if (edges > allowed) {
    arena->refuse(
        "hit_table.hit_id repeats within a plane: its %d spacepoints would have %lld hits, at most "
        "%lld (%lld for each spacepoint and plane) are taken: ids must be unique in a plane",
        event.spacepoints, static_cast<long long>(edges), static_cast<long long>(allowed),
        static_cast<long long>(kNexusEdges));
  }
  graph->up_hit.resize(edges);
  graph->down_offsets.assign(event.hits + 1, 0);
  int32_t* to = graph->up_hit.data();
  for (int32_t plane = 0; plane < event.planes; ++plane) {
    for (int32_t s = 0; s < event.spacepoints; ++s) {
      const auto [begin, end] = planes[plane].find(event.spacepoint_hit_id[plane][s]);
      for (int32_t place = begin; place < end; ++place) {
        const int32_t hit = planes[plane].hit(place);
        *to++ = hit;
        ++graph->down_offsets[hit + 1];
      }
    }
  }
  accumulate(&graph->down_offsets);
  List<int32_t> next(arena, graph->down_offsets.data(), event.hits);
  graph->down_spacepoint.resize(edges);
  for (segment = 0; segment + 1 < graph->up_offsets.size(); ++segment) {
    for (int32_t e = graph->up_offsets[segment]; e < graph->up_offsets[segment + 1]; ++e) {
      graph->down_spacepoint[next[graph->up_hit[e]]++] =
          static_cast<int32_t>(segment % event.spacepoints);
    }
  }
}

}  // namespace

Graph build_graph(const Event& event, Arena* arena) {
  limit("hits", event.hits, kMostHits, arena);
  limit("spacepoints", event.spacepoints, kMostSpacepoints, arena);
  const List<int32_t> integers(arena);
  const List<float> floats(arena);
  Graph graph{event.planes, event.hits, event.spacepoints, event.features, integers, integers,
              floats,       floats,     integers,          integers,       integers, integers,
              integers,     integers};
  group_hits(event, &graph, arena);
  // First the checks that can refuse the event, then the work that takes time.
  connect_spacepoints(event, &graph, arena);
  take_features(event, &graph);
  connect_planes(event, &graph, arena);
  extend_features(event, &graph, arena);
  graph.position.assign(3 * int64_t{event.spacepoints}, 0.0f);
  for (int32_t axis = 0; event.position != nullptr && axis < 3; ++axis) {
    for (int32_t s = 0; s < event.spacepoints; ++s) {
      graph.position[3 * int64_t{s} + axis] = event.position[axis][s];
    }
  }
  return graph;
}

}  // namespace numl
