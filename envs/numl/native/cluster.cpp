#include "cluster.h"

namespace numl {

namespace {

// The coordinate in which the points differ most.
int32_t widest(const float* x, int32_t points, int32_t width) {
  int32_t best = 0;
  double most = -1;
  for (int32_t k = 0; k < width; ++k) {
    double low = 0, high = 0;
    for (int32_t i = 0; i < points; ++i) {
      const double value = x[int64_t{i} * width + k];
      low = i == 0 || value < low ? value : low;
      high = i == 0 || value > high ? value : high;
    }
    if (high - low > most) {
      most = high - low;
      best = k;
    }
  }
  return best;
}

// The first place from `at` on that has not been taken, or the one after the last. `next` leads
// from places that have been taken to later ones, and is shortened on the way.
int32_t free_from(List<int32_t>* next, int32_t at) {
  int32_t end = at;
  while ((*next)[end] != end) {
    end = (*next)[end];
  }
  while (at != end) {
    const int32_t after = (*next)[at];
    (*next)[at] = end;
    at = after;
  }
  return end;
}

}  // namespace

void cluster(const float* x, int32_t points, int32_t width, double eps, int32_t min_samples,
             int32_t* labels, Arena* arena) {
  if (points > kMostPoints) {
    arena->refuse("the event has %d hits to find instances among: at most %d are taken", points,
                  kMostPoints);
  }
  // Sorted by a coordinate, all neighbours of a point lie in a range.
  const int32_t sorted_by = widest(x, points, width);
  const auto along = [&](int32_t i) { return double{x[int64_t{i} * width + sorted_by]}; };
  List<int32_t> order = numbers_to(arena, points);
  sort(arena, &order, [&](int32_t a, int32_t b) { return along(a) < along(b); });
  const auto near = [&](int32_t a, int32_t b) {
    double square = 0;
    for (int32_t k = 0; k < width; ++k) {
      const double step = static_cast<double>(x[int64_t{a} * width + k]) - x[int64_t{b} * width + k];
      square += step * step;
    }
    return square <= eps * eps;
  };

  // By place in that order: whether enough points are near. Where many are, few are looked at.
  List<char> core(arena, points);
  for (int32_t at = 0; at < points; ++at) {
    int32_t found = 0;
    for (int32_t other = at; found < min_samples && other < points; ++other) {
      if (along(order[other]) - along(order[at]) > eps) {
        break;
      }
      found += near(order[at], order[other]);
    }
    for (int32_t other = at - 1; found < min_samples && other >= 0; --other) {
      if (along(order[at]) - along(order[other]) > eps) {
        break;
      }
      found += near(order[at], order[other]);
    }
    core[at] = found >= min_samples;
  }

  List<int32_t> place(arena, points);
  for (int32_t at = 0; at < points; ++at) {
    place[order[at]] = at;
    labels[order[at]] = -1;
  }
  // What has a label is not looked at again.
  List<int32_t> next = numbers_to(arena, points + 1), stack(arena);
  int32_t label = 0;
  for (int32_t point = 0; point < points; ++point) {
    if (labels[point] != -1 || !core[place[point]]) {
      continue;
    }
    // All points reachable from here over core points; others belong to the first that finds them.
    const auto take = [&](int32_t at) {
      labels[order[at]] = label;
      next[at] = at + 1;
      if (core[at]) {
        stack.push_back(at);
      }
    };
    take(place[point]);
    while (!stack.empty()) {
      const int32_t at = stack.back();
      stack.pop_back();
      int32_t begin = 0;  // of the range; found by bisection
      for (int32_t end = at; begin < end;) {
        const int32_t middle = (begin + end) / 2;
        const bool below = along(order[at]) - along(order[middle]) > eps;
        (below ? begin : end) = below ? middle + 1 : middle;
      }
      for (int32_t other = free_from(&next, begin); other < points;
           other = free_from(&next, other + 1)) {
        if (along(order[other]) - along(order[at]) > eps) {
          break;
        }
        if (near(order[at], order[other])) {
          take(other);
        }
      }
    }
    ++label;
  }
}

}  // namespace numl
