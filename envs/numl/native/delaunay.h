// Delaunay triangulation of the hits of one plane.
#pragma once

#include <stdint.h>

#include "arena.h"

namespace numl {

struct Edge {
  int32_t first, second;
};

// Appends each pair of neighbours once, in any order. `xy` holds x and y of each point, floats.
//
// The edges are those of QHull with option QJ, which joggles the points by a little, so that
// collinear and coincident points are triangulated too. The same joggle is applied here, and a
// divide-and-conquer algorithm finds the triangulation several times faster; where it is too close
// a call for that, QHull itself is asked. It refuses points that lie too close together for their
// distance from the origin, above all four or more at one position: then it gets their positions
// relative to the first one, and should it refuse these as well, they form a chain in the order of
// x, then y. Fewer than four are all connected. Of many points QHull is not asked, as it could take
// minutes: the triangulation counts even where another joggle could change it.
void delaunay(const float* xy, int32_t points, List<Edge>* edges, Arena* arena);

// The divide-and-conquer part alone; false, with nothing appended, where QHull has to be asked. With
// `any`, only where there is no triangulation.
bool triangulate(const float* xy, int32_t points, bool any, List<Edge>* edges, Arena* arena);

}  // namespace numl
