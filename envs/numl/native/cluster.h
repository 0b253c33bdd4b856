// DBSCAN, as scikit-learn's class of that name labels.
#pragma once

#include <stdint.h>

#include "arena.h"

namespace numl {

// Points above which no clustering is begun: it takes time with their square.
constexpr int32_t kMostPoints = 20000;

// labels[i] = the cluster of a point, numbered from 0 in the order of their first core points, or
// -1 for none. `x` holds `width` coordinates for each point.
void cluster(const float* x, int32_t points, int32_t width, double eps, int32_t min_samples,
             int32_t* labels, Arena* arena);

}  // namespace numl
