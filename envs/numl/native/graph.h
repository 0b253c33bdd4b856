// The graph of an event, from its columns.
#pragma once

#include <stdint.h>

#include "arena.h"

namespace numl {

// Where a feature comes from: a column of the hit table, or the graph of its plane.
enum class From : int32_t { floats, integers, wire_difference, time_difference, degree, distance };

// A feature: the numbers of a column times a factor, or nugraph's extension made from the graph.
struct Feature {
  const void* column;  // null for what comes from the graph
  From from;
  float scale;
};

// The columns of an event: H hits, S spacepoints. Checked by the caller: lengths, planes, and that
// all floats are finite.
struct Event {
  int32_t planes;
  int32_t hits;
  int32_t spacepoints;
  int32_t features;
  const int32_t* hit_id;
  const int32_t* plane;
  const int32_t* wire;
  const float* time;
  float wire_scale, time_scale;
  const Feature* feature;
  const int32_t* const* spacepoint_hit_id;  // per plane [S]
  const float* const* position;             // three of [S], or null
};

// Hits are numbered plane after plane, within a plane in the order of the request. All lists of
// edges are sorted by the node that receives, which has a range in them, and by the one that sends.
struct Graph {
  int32_t planes = 0, hits = 0, spacepoints = 0, features = 0;
  List<int32_t> first;         // [planes + 1], first hit of each plane
  List<int32_t> row;           // [H], row of each hit in the request
  List<float> feature;         // [H, features], not normalised
  List<float> position;        // [S, 3], zeros if there are none
  List<int32_t> edge_offsets;  // [H + 1]
  List<int32_t> edge_source;   // [E], hits
  List<int32_t> up_offsets;    // [planes S + 1], by plane S + spacepoint
  List<int32_t> up_hit;        // [N]
  List<int32_t> down_offsets;  // [H + 1]
  List<int32_t> down_spacepoint;  // [N]
};

// Edges that a spacepoint may have in a plane, on average over all: it has one where hit ids are
// unique in their plane, as they should be. Ids that repeat multiply the edges.
constexpr int64_t kNexusEdges = 4;

// What one event may have, so that its graph and network take a second or two and no more: finding
// instances has a limit of its own (cluster.h). Events of today's detectors have a twentieth of it.
constexpr int32_t kMostHits = 100000;
constexpr int32_t kMostSpacepoints = 300000;

// The graph, in an arena. Refuses an event that is larger, or has ids that repeat so often that there
// would be more nexus edges.
Graph build_graph(const Event& event, Arena* arena);

}  // namespace numl
