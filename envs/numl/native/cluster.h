// DBSCAN, with the labels of scikit-learn's class of that name.
#pragma once

#include <stdint.h>

#include "arena.h"

namespace numl {

// Above this many points clustering is refused: where points lie within reach in one coordinate,
// but not in all, its time grows with their square, and with their width. So of wider points fewer
// are taken: the square of their number times their width is at most that of these two.
constexpr int32_t kMostPoints = 20000;
constexpr int32_t kMostWidth = 32;

// labels[i] = the cluster of a point, numbered from 0 in the order of their first core points, or
// -1 for none. `x` holds `width` coordinates for each point.
void cluster(const float* x, int32_t points, int32_t width, double eps, int32_t min_samples,
             int32_t* labels, Arena* arena);

}  // namespace numl
