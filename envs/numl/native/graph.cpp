#include "graph.h"

#include <algorithm>
#include <numeric>

#include "delaunay.h"

namespace numl {
namespace {

// Finds the hits of one plane by their id, a few lookups in a table where ids are dense.
class HitsById {
 public:
  HitsById(const Graph& graph, const Event& event, int32_t plane)
      : first_(graph.first[plane]), count_(graph.first[plane + 1] - first_), ids_(count_) {
    for (int32_t i = 0; i < count_; ++i) {
      ids_[i] = event.hit_id[graph.row[first_ + i]];
    }
    order_.resize(count_);
    std::iota(order_.begin(), order_.end(), 0);
    if (!std::is_sorted(ids_.begin(), ids_.end())) {
      std::stable_sort(order_.begin(), order_.end(),
                       [this](int32_t a, int32_t b) { return ids_[a] < ids_[b]; });
      std::sort(ids_.begin(), ids_.end());
    }
    const int64_t range = count_ ? int64_t{ids_.back()} - ids_.front() + 1 : 0;
    if (range <= 8 * int64_t{count_} + 64) {
      place_.assign(range + 1, count_);
      int32_t at = 0;
      for (int64_t id = 0; id <= range; ++id) {
        while (at < count_ && int64_t{ids_[at]} - ids_.front() < id) {
          ++at;
        }
        place_[id] = at;
      }
    }
  }

  // The range of hits with an id, in `hit`.
  std::pair<int32_t, int32_t> find(int32_t id) const {
    if (count_ == 0 || id < ids_.front() || id > ids_.back()) {
      return {0, 0};
    }
    if (!place_.empty()) {
      const int64_t at = int64_t{id} - ids_.front();
      return {place_[at], place_[at + 1]};
    }
    const auto found = std::equal_range(ids_.begin(), ids_.end(), id);
    return {static_cast<int32_t>(found.first - ids_.begin()),
            static_cast<int32_t>(found.second - ids_.begin())};
  }

  int32_t hit(int32_t place) const { return first_ + order_[place]; }

 private:
  int32_t first_, count_;
  std::vector<int32_t> ids_, order_, place_;
};

void limit(const char* what, int32_t count, int32_t most) {
  if (count > most) {
    throw EventError("the event has " + std::to_string(count) + " " + what + ": at most " +
                     std::to_string(most) + " are taken");
  }
}

void group_hits(const Event& event, Graph* graph) {
  graph->first.assign(event.planes + 1, 0);
  for (int32_t i = 0; i < event.hits; ++i) {
    ++graph->first[event.plane[i] + 1];
  }
  std::partial_sum(graph->first.begin(), graph->first.end(), graph->first.begin());
  std::vector<int32_t> next(graph->first.begin(), graph->first.end() - 1);
  graph->row.resize(event.hits);
  for (int32_t i = 0; i < event.hits; ++i) {
    graph->row[next[event.plane[i]]++] = i;
  }
}

void take_features(const Event& event, Graph* graph) {
  graph->feature.resize(size_t{1} * event.hits * event.features);
  for (int32_t f = 0; f < event.features; ++f) {
    const Feature& feature = event.feature[f];
    float* to = graph->feature.data() + f;
    for (int32_t i = 0; i < event.hits; ++i, to += event.features) {
      const int32_t row = graph->row[i];
      const float value =
          feature.is_integer
              ? static_cast<float>(static_cast<const int32_t*>(feature.column)[row])
              : static_cast<const float*>(feature.column)[row];
      *to = value * feature.scale;
    }
  }
}

void connect_planes(const Event& event, Graph* graph) {
  std::vector<float> xy;
  std::vector<Edge> edges, all;
  for (int32_t plane = 0; plane < event.planes; ++plane) {
    const int32_t first = graph->first[plane], hits = graph->first[plane + 1] - first;
    xy.resize(2 * size_t{1} * hits);
    for (int32_t i = 0; i < hits; ++i) {
      const int32_t row = graph->row[first + i];
      // Products of floats, as pynuml takes them.
      xy[2 * i] = static_cast<float>(event.wire[row]) * event.wire_scale;
      xy[2 * i + 1] = event.time[row] * event.time_scale;
    }
    edges.clear();
    delaunay(xy.data(), hits, &edges);
    for (const Edge& edge : edges) {
      all.push_back({first + edge.first, first + edge.second});
      all.push_back({first + edge.second, first + edge.first});
    }
  }
  // Sorted by the node that sends, then, keeping that order, by the one that receives.
  std::vector<int32_t> offsets(event.hits + 2, 0);
  for (const Edge& edge : all) {
    ++offsets[edge.first + 2];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<Edge> by_source(all.size());
  for (const Edge& edge : all) {
    by_source[offsets[edge.first + 1]++] = edge;
  }
  offsets.assign(event.hits + 2, 0);
  for (const Edge& edge : by_source) {
    ++offsets[edge.second + 2];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  graph->edge_source.resize(all.size());
  for (const Edge& edge : by_source) {
    graph->edge_source[offsets[edge.second + 1]++] = edge.first;
  }
  // An inner edge came from two triangles of QHull's: once is enough.
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

void connect_spacepoints(const Event& event, Graph* graph) {
  const int64_t allowed = kNexusEdges * event.planes * event.spacepoints;
  graph->up_offsets.assign(size_t{1} * event.planes * event.spacepoints + 1, 0);
  int64_t edges = 0;
  size_t segment = 0;
  std::vector<HitsById> planes;
  planes.reserve(event.planes);
  for (int32_t plane = 0; plane < event.planes; ++plane) {
    planes.emplace_back(*graph, event, plane);
    for (int32_t s = 0; s < event.spacepoints; ++s) {
      const auto [begin, end] = planes.back().find(event.spacepoint_hit_id[plane][s]);
      edges += end - begin;
      graph->up_offsets[++segment] = static_cast<int32_t>(std::min<int64_t>(edges, INT32_MAX));
    }
  }
  if (edges > allowed) {
    throw EventError("hit_table.hit_id repeats within a plane: its " +
                     std::to_string(event.spacepoints) + " spacepoints would have " +
                     std::to_string(edges) + " hits, at most " + std::to_string(allowed) + " (" +
                     std::to_string(kNexusEdges) +
                     " for each spacepoint and plane) are taken: ids must be unique in a plane");
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
  std::partial_sum(graph->down_offsets.begin(), graph->down_offsets.end(),
                   graph->down_offsets.begin());
  std::vector<int32_t> next(graph->down_offsets.begin(), graph->down_offsets.end() - 1);
  graph->down_spacepoint.resize(edges);
  for (segment = 0; segment + 1 < graph->up_offsets.size(); ++segment) {
    for (int32_t e = graph->up_offsets[segment]; e < graph->up_offsets[segment + 1]; ++e) {
      graph->down_spacepoint[next[graph->up_hit[e]]++] =
          static_cast<int32_t>(segment % event.spacepoints);
    }
  }
}

}  // namespace

Graph build_graph(const Event& event) {
  limit("hits", event.hits, kMostHits);
  limit("spacepoints", event.spacepoints, kMostSpacepoints);
  Graph graph;
  graph.planes = event.planes;
  graph.hits = event.hits;
  graph.spacepoints = event.spacepoints;
  graph.features = event.features;
  group_hits(event, &graph);
  // First what can refuse the event, then what takes time.
  connect_spacepoints(event, &graph);
  take_features(event, &graph);
  connect_planes(event, &graph);
  graph.position.assign(3 * size_t{1} * event.spacepoints, 0.0f);
  for (int32_t axis = 0; event.position != nullptr && axis < 3; ++axis) {
    for (int32_t s = 0; s < event.spacepoints; ++s) {
      graph.position[3 * size_t{1} * s + axis] = event.position[axis][s];
    }
  }
  return graph;
}

}  // namespace numl
