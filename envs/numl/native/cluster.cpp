#include "cluster.h"

#include <math.h>

namespace numl {

namespace {

constexpr int32_t kBlock = 8;
typedef float Block __attribute__((vector_size(kBlock * sizeof(float))));
typedef float Half __attribute__((vector_size(kBlock / 2 * sizeof(float))));

// Of points of a width, how many are clustered at most.
int32_t most_points(int32_t width) {
  return width <= kMostWidth
             ? kMostPoints
             : static_cast<int32_t>(kMostPoints * sqrt(static_cast<double>(kMostWidth) / width));
}

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

float total(Block block) {
  Half half[2];
  memcpy(half, &block, sizeof block);
  half[0] += half[1];
  return (half[0][0] + half[0][1]) + (half[0][2] + half[0][3]);
}

// Whether the square of a distance is above `most`, in float32. The width is whole blocks; after
// every second one, not each, it is seen whether they suffice: that takes as long as a block.
bool above(const float* a, const float* b, int32_t width, float most) {
  Block sums = {};
  for (int32_t k = 0; k < width; k += kBlock) {
    Block of_a, of_b;
    memcpy(&of_a, a + k, sizeof of_a);
    memcpy(&of_b, b + k, sizeof of_b);
    const Block step = of_a - of_b;
    sums += step * step;
    if (k % (2 * kBlock) == kBlock && total(sums) > most) {
      return true;
    }
  }
  return total(sums) > most;
}

}  // namespace

void cluster(const float* x, int32_t points, int32_t width, double eps, int32_t min_samples,
             int32_t* labels, Arena* arena) {
  if (points > most_points(width)) {
    arena->refuse("the event has %d hits to find instances among: at most %d are taken", points,
                  most_points(width));
  }
  // Sorted by a coordinate, all neighbours of a point lie in a range.
  const int32_t sorted_by = widest(x, points, width);
  const auto coordinate = [&](int32_t i) { return x[int64_t{i} * width + sorted_by]; };
  List<int32_t> order = numbers_to(arena, points);
  sort(arena, &order, [&](int32_t a, int32_t b) { return coordinate(a) < coordinate(b); });
  const int32_t blocks = (width + kBlock - 1) / kBlock * kBlock;
  List<float> sorted(arena, int64_t{points} * blocks);
  for (int32_t at = 0; at < points; ++at) {
    memcpy(&sorted[int64_t{at} * blocks], x + int64_t{order[at]} * width, width * sizeof(float));
  }
  const auto along = [&](int32_t at) { return double{sorted[int64_t{at} * blocks + sorted_by]}; };
  // Most pairs are told apart in float32, several times as fast as in double, which decides where
  // rounding could: it errs by less than these parts of a square, underflows below the last, and
  // what overflows is not above a limit that does so, too.
  const float surely_apart = static_cast<float>(eps * eps * (1 + 1e-6 * blocks) + 1e-30);
  const auto near = [&](int32_t at, int32_t other) {
    const float* a = &sorted[int64_t{at} * blocks];
    const float* b = &sorted[int64_t{other} * blocks];
    if (above(a, b, blocks, surely_apart)) {
      return false;
    }
    double square = 0;
    for (int32_t k = 0; k < width; ++k) {
      const double step = static_cast<double>(a[k]) - b[k];
      square += step * step;
    }
    return square <= eps * eps;
  };

  // By place in that order: whether enough points are near. Where many are, few are looked at.
  List<char> core(arena, points);
  for (int32_t at = 0; at < points; ++at) {
    int32_t found = 0;
    for (int32_t other = at; found < min_samples && other < points; ++other) {
      if (along(other) - along(at) > eps) {
        break;
      }
      found += near(at, other);
    }
    for (int32_t other = at - 1; found < min_samples && other >= 0; --other) {
      if (along(at) - along(other) > eps) {
        break;
      }
      found += near(at, other);
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
        const bool below = along(at) - along(middle) > eps;
        (below ? begin : end) = below ? middle + 1 : middle;
      }
      for (int32_t other = free_from(&next, begin); other < points;
           other = free_from(&next, other + 1)) {
        if (along(other) - along(at) > eps) {
          break;
        }
        if (near(at, other)) {
          take(other);
        }
      }
    }
    ++label;
  }
}

}  // namespace numl
