#include "cluster.h"

namespace numl {

void cluster(const float* x, int32_t points, int32_t width, double eps, int32_t min_samples,
             int32_t* labels, Arena* arena) {
  // Sorted by the first coordinate, all neighbours of a point lie in a range.
  List<int32_t> order = numbers_to(arena, points);
  const auto first = [&](int32_t i) { return static_cast<double>(x[int64_t{i} * width]); };
  sort(arena, &order, [&](int32_t a, int32_t b) { return first(a) < first(b); });
  List<int32_t> place(arena, points);
  for (int32_t at = 0; at < points; ++at) {
    place[order[at]] = at;
  }
  const auto near = [&](int32_t a, int32_t b) {
    double square = 0;
    for (int32_t k = 0; k < width; ++k) {
      const double step = static_cast<double>(x[int64_t{a} * width + k]) - x[int64_t{b} * width + k];
      square += step * step;
    }
    return square <= eps * eps;
  };
  const auto neighbours = [&](int32_t point, List<int32_t>* found) {
    found->clear();
    int32_t begin = place[point], end = begin;
    while (begin > 0 && first(point) - first(order[begin - 1]) <= eps) {
      --begin;
    }
    while (end < points && first(order[end]) - first(point) <= eps) {
      ++end;
    }
    for (int32_t at = begin; at < end; ++at) {
      if (near(point, order[at])) {
        found->push_back(order[at]);
      }
    }
  };

  List<int32_t> found(arena), stack(arena);
  List<char> core(arena, points);
  for (int32_t point = 0; point < points; ++point) {
    neighbours(point, &found);
    core[point] = static_cast<int32_t>(found.size()) >= min_samples;
  }
  for (int32_t point = 0; point < points; ++point) {
    labels[point] = -1;
  }
  int32_t label = 0;
  for (int32_t point = 0; point < points; ++point) {
    if (labels[point] != -1 || !core[point]) {
      continue;
    }
    // All points reachable from here over core points; others belong to the first that finds them.
    labels[point] = label;
    stack.assign(1, point);
    while (!stack.empty()) {
      const int32_t at = stack.back();
      stack.pop_back();
      neighbours(at, &found);
      for (const int32_t next : found) {
        if (labels[next] == -1) {
          labels[next] = label;
          if (core[next]) {
            stack.push_back(next);
          }
        }
      }
    }
    ++label;
  }
}

}  // namespace numl
