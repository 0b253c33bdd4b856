#include "delaunay.h"

#include <float.h>
#include <stdio.h>

#include <libqhull_r/qhull_ra.h>

namespace numl {
namespace {

struct Point {
  double x, y;
};

// Of a part of the hull.
struct Ends {
  int32_t left, right;
};

double smaller(double a, double b) { return b < a ? b : a; }
double larger(double a, double b) { return a < b ? b : a; }

double distance(const Point& a, const Point& b) {
  return __builtin_sqrt((a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y));
}

// The rounding of the determinants below: Shewchuk's bounds ("Adaptive precision floating-point
// arithmetic and fast robust geometric predicates", 1997), with some margin.
constexpr double kRounding = 16.0 * DBL_EPSILON;

// Hits of a plane up to which QHull is asked where the triangulation below is too close a call: it
// takes 50 microseconds for each, and several times the memory.
constexpr int32_t kMostForQhull = 5000;

// Guibas and Stolfi, "Primitives for the manipulation of general subdivisions and the computation
// of Voronoi diagrams", ACM Transactions on Graphics 4 (1985). An edge has two directions, e and
// e ^ 1; around the origin of each, edges form a ring, counter-clockwise by `next`.
class Subdivision {
 public:
  // `margin` is a length: what points have to be off the circles and lines that matter. `height` is
  // another: what points, lifted to z = lift (x^2 + y^2), have to be off the planes that matter.
  Subdivision(const List<Point>& points, double margin, double lift, double height, Arena* arena)
      : points_(points),
        margin_(margin),
        lift_(lift),
        height_(height),
        origin_(arena),
        next_(arena),
        previous_(arena),
        free_(arena) {
    // In proportion to the algorithm's work, which touches each point once per level.
    for (int64_t part = points.size() + 1; part > 0; part /= 2) {
      steps_left_ += 16 * (points.size() + 1);
    }
    const int64_t edges = 6 * points.size() + 16;
    origin_.reserve(edges);
    next_.reserve(edges);
    previous_.reserve(edges);
  }

  enum class Result {
    robust,     // QHull's triangulation
    uncertain,  // a triangulation, but rounding or another joggle could change it
    lost,       // rounding contradicted itself: no triangulation
  };

  Result run() {
    build(0, static_cast<int32_t>(points_.size()));
    if (steps_left_ < 0) {
      return Result::lost;
    }
    return certain_ && robust() ? Result::robust : Result::uncertain;
  }

  // Calls `use(a, b)` for each edge, with the points' indices.
  template <class Use>
  void edges(Use use) const {
    for (int32_t e = 0; e < size(); e += 2) {
      if (origin_[e] >= 0) {
        use(origin_[e], origin_[e + 1]);
      }
    }
  }

 private:
  int32_t size() const { return static_cast<int32_t>(origin_.size()); }
  // False after more steps than a consistent triangulation can take: contradictions never end.
  bool step() { return --steps_left_ >= 0; }
  const Point& from(int32_t e) const { return points_[origin_[e]]; }
  const Point& to(int32_t e) const { return points_[origin_[e ^ 1]]; }

  int32_t make(int32_t a, int32_t b) {
    int32_t e;
    if (free_.empty()) {
      e = size();
      origin_.resize(e + 2);
      next_.resize(e + 2);
      previous_.resize(e + 2);
    } else {
      e = free_.back();
      free_.pop_back();
    }
    origin_[e] = a;
    origin_[e + 1] = b;
    next_[e] = previous_[e] = e;
    next_[e + 1] = previous_[e + 1] = e + 1;
    return e;
  }

  void splice(int32_t a, int32_t b) {
    const int32_t after_a = next_[a], after_b = next_[b];
    next_[a] = after_b;
    next_[b] = after_a;
    previous_[after_b] = a;
    previous_[after_a] = b;
  }

  // The next edge around the face on the left of e.
  int32_t left_next(int32_t e) const { return previous_[e ^ 1]; }

  int32_t connect(int32_t a, int32_t b) {
    const int32_t e = make(origin_[a ^ 1], origin_[b]);
    splice(e, left_next(a));
    splice(e ^ 1, b);
    return e;
  }

  void remove(int32_t e) {
    splice(e, previous_[e]);
    splice(e ^ 1, previous_[e ^ 1]);
    e &= ~1;
    origin_[e] = origin_[e + 1] = -1;
    free_.push_back(e);
  }

  // Twice the signed area of a triangle; positive if counter-clockwise.
  double area(const Point& a, const Point& b, const Point& c) {
    if (&a == &b || &b == &c || &c == &a) {
      return 0;
    }
    const double left = (b.x - a.x) * (c.y - a.y), right = (b.y - a.y) * (c.x - a.x);
    const double det = left - right;
    certain_ &= __builtin_fabs(det) > kRounding * (__builtin_fabs(left) + __builtin_fabs(right));
    return det;
  }

  bool right_of(const Point& p, int32_t e) { return area(p, to(e), from(e)) > 0; }
  bool left_of(const Point& p, int32_t e) { return area(p, from(e), to(e)) > 0; }

  // Positive if d lies within the circle through a, b and c, which run counter-clockwise.
  double in_circle(const Point& a, const Point& b, const Point& c, const Point& d) {
    const double ax = a.x - d.x, ay = a.y - d.y, bx = b.x - d.x, by = b.y - d.y;
    const double cx = c.x - d.x, cy = c.y - d.y;
    const double bc = bx * cy - by * cx, ca = cx * ay - cy * ax, ab = ax * by - ay * bx;
    const double a2 = ax * ax + ay * ay, b2 = bx * bx + by * by, c2 = cx * cx + cy * cy;
    const double det = a2 * bc + b2 * ca + c2 * ab;
    const double size = a2 * (__builtin_fabs(bx * cy) + __builtin_fabs(by * cx)) +
                        b2 * (__builtin_fabs(cx * ay) + __builtin_fabs(cy * ax)) +
                        c2 * (__builtin_fabs(ax * by) + __builtin_fabs(ay * bx));
    certain_ &= __builtin_fabs(det) > kRounding * size;
    return det;
  }

  // Twice the area of a triangle of lifted points.
  double lifted_area(const Point& a, const Point& b, const Point& c) const {
    const double bx = b.x - a.x, by = b.y - a.y, cx = c.x - a.x, cy = c.y - a.y;
    const double bz = lift_ * (bx * (b.x + a.x) + by * (b.y + a.y));
    const double cz = lift_ * (cx * (c.x + a.x) + cy * (c.y + a.y));
    const double x = by * cz - bz * cy, y = bz * cx - bx * cz, z = bx * cy - by * cx;
    return __builtin_sqrt(x * x + y * y + z * z);
  }

  // The hull's edges at the leftmost point (counter-clockwise) and at the rightmost (clockwise).
  Ends build(int32_t first, int32_t last) {
    const int32_t count = last - first;
    if (count == 2) {
      const int32_t e = make(first, first + 1);
      return {e, e ^ 1};
    }
    if (count == 3) {
      const int32_t a = make(first, first + 1), b = make(first + 1, first + 2);
      splice(a ^ 1, b);
      const double turn = area(points_[first], points_[first + 1], points_[first + 2]);
      if (turn > 0) {
        connect(b, a);
        return {a, b ^ 1};
      }
      if (turn < 0) {
        const int32_t c = connect(b, a);
        return {c ^ 1, c};
      }
      return {a, b ^ 1};
    }
    auto [left_outer, left_inner] = build(first, first + count / 2);
    auto [right_inner, right_outer] = build(first + count / 2, last);
    // The lower common tangent.
    while (step()) {
      if (left_of(from(right_inner), left_inner)) {
        left_inner = left_next(left_inner);
      } else if (right_of(from(left_inner), right_inner)) {
        right_inner = next_[right_inner ^ 1];
      } else {
        break;
      }
    }
    int32_t base = connect(right_inner ^ 1, left_inner);
    if (origin_[left_inner] == origin_[left_outer]) {
      left_outer = base ^ 1;
    }
    if (origin_[right_inner] == origin_[right_outer]) {
      right_outer = base;
    }
    // Rising, until there is no edge above the base.
    while (step()) {
      int32_t left = next_[base ^ 1], right = previous_[base];
      const bool has_left = right_of(to(left), base);
      if (has_left) {
        while (step() && right_of(to(next_[left]), base) &&
               in_circle(to(base), from(base), to(left), to(next_[left])) > 0) {
          const int32_t above = next_[left];
          remove(left);
          left = above;
        }
      }
      const bool has_right = right_of(to(right), base);
      if (has_right) {
        while (step() && right_of(to(previous_[right]), base) &&
               in_circle(to(base), from(base), to(right), to(previous_[right])) > 0) {
          const int32_t above = previous_[right];
          remove(right);
          right = above;
        }
      }
      if (!has_left && !has_right) {
        return {left_outer, right_outer};
      }
      if (!has_left ||
          (has_right && in_circle(to(left), from(left), from(right), to(right)) > 0)) {
        base = connect(right, base ^ 1);
      } else {
        base = connect(base ^ 1, left ^ 1);
      }
    }
    return {left_outer, right_outer};
  }

  // Whether each point is well off the circles of the triangles beside its own and, lifted, off their
  // planes, and off the line between its neighbours on the hull.
  bool robust() {
    for (int32_t e = 0; e < size(); ++e) {
      if (origin_[e] < 0) {
        continue;
      }
      const int32_t after = left_next(e);
      const Point &a = from(e), &b = to(e), &c = to(after);
      const double twice = area(a, b, c);
      if (twice <= 0 || left_next(left_next(after)) != e) {
        // The outside is on the left of e, and of the edge after it.
        const double side = __builtin_fabs(b.x - a.x) + __builtin_fabs(b.y - a.y) + __builtin_fabs(c.x - a.x) +
                            __builtin_fabs(c.y - a.y);
        if (!(-twice > margin_ * side)) {
          return false;
        }
        continue;
      }
      const int32_t across = left_next(e ^ 1);
      const Point& d = to(across);
      if (e & 1 || left_next(left_next(across)) != (e ^ 1) || area(b, a, d) <= 0) {
        continue;  // looked at from the other side, or on the hull
      }
      const double ra = distance(a, d), rb = distance(b, d), rc = distance(c, d);
      // How much the determinant changes if a point moves by a unit.
      const double gradient = ra * rb * (ra + rb) + rb * rc * (rb + rc) + rc * ra * (rc + ra);
      const double off = -in_circle(a, b, c, d);
      if (!(off > margin_ * gradient) || !(off * lift_ > height_ * lifted_area(a, b, c))) {
        return false;
      }
    }
    return certain_;
  }

  const List<Point>& points_;
  const double margin_, lift_, height_;
  bool certain_ = true;
  int64_t steps_left_ = 0;
  List<int32_t> origin_, next_, previous_, free_;
};

struct Joggle {
  double most;  // by which points are moved
  double lift;  // factor of the third coordinate
};

// Moves points as QHull does at its first attempt (its functions qh_detjoggle, qh_joggleinput and
// qh_rand, with the third coordinate scaled to the range of the others).
Joggle joggle_points(const float* xy, int32_t points, Point* joggled) {
  double low[2] = {xy[0], xy[1]}, high[2] = {xy[0], xy[1]};
  for (int32_t i = 0; i < 2 * points; ++i) {
    low[i % 2] = smaller(low[i % 2], xy[i]);
    high[i % 2] = larger(high[i % 2], xy[i]);
  }
  const double size[3] = {larger(high[0], -low[0]), larger(high[1], -low[1]),
                          larger(high[0] - low[0], high[1] - low[1])};
  const double largest = larger(larger(size[0], size[1]), size[2]);
  const double sum = smaller(__builtin_sqrt(3.0) * largest, size[0] + size[1] + size[2]);
  const double joggle = 30000.0 * DBL_EPSILON * (3.0 * sum * 1.01 + largest);
  int64_t random = 1;
  const auto next = [&random] {
    random = 16807 * random % 2147483647;
    return static_cast<double>(random);
  };
  next();  // QHull reports it as the seed
  const double scale = 2.0 * joggle / 2147483646.0;
  for (int32_t i = 0; i < points; ++i) {
    joggled[i].x = xy[2 * i] + (next() * scale - joggle);
    joggled[i].y = xy[2 * i + 1] + (next() * scale - joggle);
    next();  // for the third coordinate, which follows from the others afterwards
  }
  double lowest = DBL_MAX, highest = 0;
  for (int32_t i = 0; i < points; ++i) {
    const double z = joggled[i].x * joggled[i].x + joggled[i].y * joggled[i].y;
    lowest = smaller(lowest, z);
    highest = larger(highest, z);
  }
  return {joggle, size[2] / (highest - lowest)};
}

// QHull's triangles; false if it refuses the points.
bool qhull(const float* xy, int32_t points, bool relative, List<Edge>* edges, Arena* arena) {
  // Nothing may end the call while QHull holds memory: there are at most 2 triangles for a point.
  edges->reserve(edges->size() + 6 * int64_t{points});
  List<double> coordinates(arena, 2 * int64_t{points});
  for (int64_t i = 0; i < coordinates.size(); ++i) {
    coordinates[i] = static_cast<double>(xy[i]) - (relative ? xy[i % 2] : 0.0f);
  }
  // For its messages; unlike /dev/null it needs no file descriptor.
  FILE* silent = fmemopen(nullptr, 1, "w");
  if (silent == nullptr) {
    arena->fail("no memory left");
  }
  qhT state;
  qhT* qh = &state;
  qh_zero(qh, silent);
  char command[] = "qhull d Qt QJ";
  const int failed = qh_new_qhull(qh, 2, points, coordinates.data(), 0, command, nullptr, silent);
  if (!failed) {
    facetT* facet;
    FORALLfacets {
      if (facet->upperdelaunay) {
        continue;
      }
      int32_t corner[3] = {}, corners = 0;
      vertexT *vertex, **vertexp;
      FOREACHvertex_(facet->vertices) {
        if (corners < 3) {
          corner[corners++] = qh_pointid(qh, vertex->point);
        }
      }
      edges->push_back({corner[0], corner[1]});
      edges->push_back({corner[1], corner[2]});
      edges->push_back({corner[2], corner[0]});
    }
  }
  qh_freeqhull(qh, !qh_ALL);
  int leaked, blocks;
  qh_memfreeshort(qh, &leaked, &blocks);
  fclose(silent);
  if (failed == qh_ERRmem) {
    arena->fail("no memory left");
  }
  return !failed;
}

}  // namespace

bool triangulate(const float* xy, int32_t points, bool any, List<Edge>* edges,
                 Arena* arena) {
  List<Point> joggled(arena, points);
  const Joggle joggle = joggle_points(xy, points, joggled.data());
  List<int32_t> order = numbers_to(arena, points);
  sort(arena, &order, [&](int32_t a, int32_t b) {
    return joggled[a].x != joggled[b].x ? joggled[a].x < joggled[b].x
                                        : joggled[a].y < joggled[b].y;
  });
  List<Point> sorted(arena, points);
  for (int32_t i = 0; i < points; ++i) {
    sorted[i] = joggled[order[i]];
  }
  // QHull joggles anew where a point is off a plane by less than its rounding, a thirty-thousandth
  // of the joggle. Seen from the lifted points, lengths are shorter: hence the fiftieth. Of points
  // that only the joggle parts, the lifted ones are nearly in a plane: hence the thousandth.
  Subdivision subdivision(sorted, joggle.most / 50, joggle.lift, joggle.most / 1000, arena);
  const Subdivision::Result result = subdivision.run();
  if (result == Subdivision::Result::lost ||
      (result == Subdivision::Result::uncertain && !any)) {
    return false;
  }
  subdivision.edges([&](int32_t a, int32_t b) { edges->push_back({order[a], order[b]}); });
  return true;
}

void delaunay(const float* xy, int32_t points, List<Edge>* edges, Arena* arena) {
  if (points < 4) {
    for (int32_t a = 0; a < points; ++a) {
      for (int32_t b = a + 1; b < points; ++b) {
        edges->push_back({a, b});
      }
    }
    return;
  }
  const bool small = points <= kMostForQhull;
  if (triangulate(xy, points, !small, edges, arena) ||
      (small && (qhull(xy, points, false, edges, arena) || qhull(xy, points, true, edges, arena)))) {
    return;
  }
  List<int32_t> order = numbers_to(arena, points);
  sort(arena, &order, [xy](int32_t a, int32_t b) {
    return xy[2 * a] != xy[2 * b] ? xy[2 * a] < xy[2 * b] : xy[2 * a + 1] < xy[2 * b + 1];
  });
  for (int32_t i = 1; i < points; ++i) {
    edges->push_back({order[i - 1], order[i]});
  }
}

}  // namespace numl
