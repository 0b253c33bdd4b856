// Arithmetic on rows of floats: vectors, layers, and aggregation of messages.
//
// Compiled once for each level of instructions. All is in an unnamed namespace, and no templates of
// the standard library are used: of a function that two levels share the linker keeps either one.
#pragma once

#include <stdint.h>
#include <string.h>

namespace {

#if defined(__clang__)
#define NUML_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NUML_UNROLL _Pragma("GCC unroll 16")
#endif

// What is called from many places is compiled once for all of them.
#if defined(__clang__)
#define NUML_ONCE __attribute__((noinline))
#else
#define NUML_ONCE __attribute__((noinline, noclone))
#endif

// As wide as the registers are: wider ones the compiler would take apart, one by one. A tile of a
// product is about as many rows as the registers hold at kColumns vectors each.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 6;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRows = 3;
#else
constexpr int kLanes = 4, kRows = 3;
#endif
constexpr int kColumns = 4;
constexpr int kNodes = 12;  // that take the way through two layers together: whole tiles
static_assert(kNodes % kRows == 0, "a tile would end outside the buffers");

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));

template <int lanes>
inline Floats load(const float* from) {
  Floats value = {};
  memcpy(&value, from, lanes * sizeof(float));
  return value;
}

template <int lanes>
inline void store(float* to, Floats value) {
  memcpy(to, &value, lanes * sizeof(float));
}

inline Floats all(float value) { return Floats{} + value; }

// Calls `work.run<N, lanes>(column)` for all columns, N vectors of so many lanes at a time.
template <class Work>
inline void over_columns(int64_t width, const Work& work) {
  int64_t column = 0;
  for (; column + kColumns * kLanes <= width; column += kColumns * kLanes) {
    work.template run<kColumns, kLanes>(column);
  }
  for (; column + 2 * kLanes <= width; column += 2 * kLanes) {
    work.template run<2, kLanes>(column);
  }
  for (; column + kLanes <= width; column += kLanes) {
    work.template run<1, kLanes>(column);
  }
  for (; kLanes > 8 && column + 8 <= width; column += 8) {
    work.template run<1, kLanes < 8 ? kLanes : 8>(column);
  }
  for (; column + 4 <= width; column += 4) {
    work.template run<1, 4>(column);
  }
  for (; column < width; ++column) {
    work.template run<1, 1>(column);
  }
}

constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x from -126 to 126, to the last digit or two of float32: the fraction, from -1/2 to 1/2,
// by a polynomial (a Chebyshev fit), the whole number as exponent.
inline Floats power_of_two(Floats x) {
  // Adding 1.5 2^23 rounds to a whole number, which then stands in the lowest bits.
  const float whole = 12582912.0f;
  const Floats shifted = x + whole;
  const Floats f = x - (shifted - whole);
  Floats p = f * 1.54614478e-4f + 1.33908668e-3f;
  p = p * f + 9.61805694e-3f;
  p = p * f + 5.55035695e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147182e-1f;
  p = p * f + 1.0f;
  Bits exponent;
  memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent << 23) + (127u << 23);
  Floats power;
  memcpy(&power, &exponent, sizeof power);
  return p * power;
}

// exp(x) for x <= 87; zero where it would not be a normal number, and NaN stays NaN.
inline Floats exponential(Floats x) {
  return x < all(-87.0f) ? Floats{} : power_of_two(x * kLog2E);
}

// a / b, for ordinary numbers.
inline Floats quotient(Floats a, Floats b) {
#if defined(__AVX512F__)
  // From the processor's approximation to full precision, in less time than a division takes.
  Floats r;
  __asm__("vrcp14ps %1, %0" : "=v"(r) : "v"(b));  // its intrinsic's header is half of all there is
  const Floats refined = r * (2.0f - b * r);
  const Floats q = a * refined;
  return q + refined * (a - b * q);
#else
  return a / b;
#endif
}

// x tanh(log(1 + exp(x))), as a rational function of e = exp(x): with n = e (e + 2) it is
// x n / (n + 2). From x = 20 on the factor is 1, so that the exponent never overflows.
struct Mish {
  Floats operator()(Floats x) const {
    const Floats e = exponential(x > all(20.0f) ? all(20.0f) : x);
    const Floats n = e * e * 0.5f + e;
    return x * quotient(n, n + 1.0f);
  }
};

// The approximation of Eigen's generic_fast_tanh_float: a minimax fit within the limit. Beyond it
// the value stays, at most 3e-7 below 1.
struct Tanh {
  Floats operator()(Floats x) const {
    const Floats limit = all(7.90531110763549805f);
    x = x > limit ? limit : x;
    x = x < -limit ? -limit : x;
    const Floats s = x * x;
    Floats p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    Floats q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return quotient(x * p, q);
  }
};

struct Sigmoid {
  Floats operator()(Floats x) const {
    // The exponential of a number that is never large.
    const Floats e = exponential(x < Floats{} ? x : -x);
    const Floats p = quotient(all(1.0f), 1.0f + e);
    return x < Floats{} ? e * p : p;
  }
};

struct Exponential {
  Floats operator()(Floats x) const { return exponential(x); }
};

struct Identity {
  Floats operator()(Floats x) const { return x; }
};

// f(x) for each of some numbers, in place.
template <class F>
struct Map {
  float* values;

  template <int N, int lanes>
  void run(int64_t column) const {
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      float* at = values + column + n * kLanes;
      store<lanes>(at, F()(load<lanes>(at)));
    }
  }
};

template <class F>
NUML_ONCE void map(float* values, int64_t count) {
  over_columns(count, Map<F>{values});
}

// The weights [inputs, outputs] of a layer, and where the sums of a node start: at the bias, or at
// a row of the node's own.
struct Dense {
  const float* weight;
  const float* start;
  int64_t start_stride;  // 0: the same for all nodes
  int64_t inputs, outputs;
};

// f(x W + start) for kRows rows.
template <class F>
struct Product {
  const Dense& layer;
  const float* start;
  const float* x;
  float* out;
  int64_t out_stride;

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats sums[kRows][N];
  NUML_UNROLL
    for (int row = 0; row < kRows; ++row) {
  NUML_UNROLL
    for (int n = 0; n < N; ++n) {
        sums[row][n] = load<lanes>(start + row * layer.start_stride + column + n * kLanes);
      }
    }
    const float* weight = layer.weight + column;
    for (int64_t k = 0; k < layer.inputs; ++k, weight += layer.outputs) {
      Floats weights[N];
  NUML_UNROLL
    for (int n = 0; n < N; ++n) {
        weights[n] = load<lanes>(weight + n * kLanes);
      }
  NUML_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const float value = x[row * layer.inputs + k];
  NUML_UNROLL
    for (int n = 0; n < N; ++n) {
          sums[row][n] += weights[n] * value;
        }
      }
    }
  NUML_UNROLL
    for (int row = 0; row < kRows; ++row) {
  NUML_UNROLL
    for (int n = 0; n < N; ++n) {
        store<lanes>(out + row * out_stride + column + n * kLanes, F()(sums[row][n]));
      }
    }
  }
};

// f(x W + start) for rows in whole tiles, the first of which is that of `node`.
template <class F>
NUML_ONCE void apply(const Dense& layer, int64_t node, const float* x, int rows, float* out,
                     int64_t out_stride) {
  for (int row = 0; row < rows; row += kRows) {
    over_columns(layer.outputs,
                 Product<F>{layer, layer.start + (node + row) * layer.start_stride,
                            x + row * layer.inputs, out + row * out_stride, out_stride});
  }
}

struct Copy {
  const float* from;
  float* to;

  template <int N, int lanes>
  void run(int64_t column) const {
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      store<lanes>(to + column + n * kLanes, load<lanes>(from + column + n * kLanes));
    }
  }
};

NUML_ONCE void copy(const float* from, int64_t count, float* to) {
  over_columns(count, Copy{from, to});
}

// A few nodes at a time pass all the way through a layer or two: what they need is then in the
// first-level cache. Calls `fill(node, to)`, which writes the inputs of a node, for the nodes
// [first, last), and writes their outputs to out + node * out_stride. `scratch` has room for
// kNodes rows of inputs, of what is between the layers, and of outputs.
template <class Fill, class Layers>
inline void over_nodes(int64_t first, int64_t last, int64_t inputs, int64_t outputs, float* out,
                       int64_t out_stride, float* scratch, Fill fill, Layers layers) {
  // Rows after the last node hold stale numbers, which nobody reads.
  float* rest = scratch + kNodes * inputs;
  for (int64_t node = first; node < last; node += kNodes) {
    const int nodes = last - node < kNodes ? static_cast<int>(last - node) : kNodes;
    for (int n = 0; n < nodes; ++n) {
      fill(node + n, scratch + n * inputs);
    }
    float* to = out + node * out_stride;
    if (nodes == kNodes) {
      layers(node, scratch, kNodes, to, out_stride);
      continue;
    }
    layers(node, scratch, (nodes + kRows - 1) / kRows * kRows, rest, outputs);
    for (int n = 0; n < nodes; ++n) {
      copy(rest + n * outputs, outputs, to + n * out_stride);
    }
  }
}

// f(layer(inputs)) for the nodes [first, last).
template <class F, class Fill>
inline void one_layer(int64_t first, int64_t last, const Dense& layer, float* out,
                      int64_t out_stride, float* scratch, Fill fill) {
  over_nodes(first, last, layer.inputs, layer.outputs, out, out_stride, scratch, fill,
             [&](int64_t node, const float* x, int rows, float* to, int64_t stride) {
               apply<F>(layer, node, x, rows, to, stride);
             });
}

// f(output(f(hidden(inputs)))) for the nodes [first, last).
template <class F, class Fill>
inline void two_layers(int64_t first, int64_t last, const Dense& hidden, const Dense& output,
                       float* out, int64_t out_stride, float* scratch, Fill fill) {
  float* middle = scratch + kNodes * (hidden.inputs + output.outputs);
  over_nodes(first, last, hidden.inputs, output.outputs, out, out_stride, scratch, fill,
             [&](int64_t node, const float* x, int rows, float* to, int64_t stride) {
               apply<F>(hidden, node, x, rows, middle, hidden.outputs);
               apply<F>(output, node, middle, rows, to, stride);
             });
}

// The messages weight[e] table[rows[e]] that one node receives.
struct Messages {
  const float* table;
  const int32_t* rows;
  const float* weight;
  int64_t width;
  int64_t first, last;

  const float* row(int64_t e) const { return table + rows[e] * width; }
};

// sum(m softmax(m)) per feature; zero without messages. Messages of up to this size need no shift
// before their exponential: its sums stay within float32.
constexpr float kUnshifted = 60.0f;

struct SoftmaxSum {
  const Messages of;
  float* out;
  bool shift;  // subtract the largest message

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats largest[N] = {}, total[N] = {}, sum[N] = {};
    for (int64_t e = of.first; shift && e < of.last; ++e) {
      const float* row = of.row(e) + column;
      NUML_UNROLL
      for (int n = 0; n < N; ++n) {
        const Floats message = load<lanes>(row + n * kLanes) * of.weight[e];
        largest[n] = e == of.first || message > largest[n] ? message : largest[n];
      }
    }
    for (int64_t e = of.first; e < of.last; ++e) {
      const float* row = of.row(e) + column;
      // The exponential is a power of two: the messages are taken times log2(e).
      const float factor = of.weight[e] * kLog2E;
      NUML_UNROLL
      for (int n = 0; n < N; ++n) {
        Floats message = load<lanes>(row + n * kLanes);
        Floats weight;
        if (shift) {
          message = message * of.weight[e];
          weight = exponential(message - largest[n]);
        } else {
          message = message * factor;
          weight = power_of_two(message);
        }
        total[n] += weight;
        sum[n] += weight * message;
      }
    }
    const float scale = shift ? 1.0f : 1.0f / kLog2E;
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      const Floats mean = of.first < of.last ? sum[n] / total[n] * scale : sum[n];
      store<lanes>(out + column + n * kLanes, mean);
    }
  }
};

NUML_ONCE void softmax_sum(const Messages& messages, bool shift, float* out) {
  over_columns(messages.width, SoftmaxSum{messages, out, shift});
}

// The softmax over classes of scores [classes, count], in place.
struct ClassSoftmax {
  float* scores;
  int64_t classes, count;

  template <int N, int lanes>
  void run(int64_t column) const {
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      float* const at = scores + column + n * kLanes;
      Floats largest = load<lanes>(at), total = {};
      for (int64_t c = 1; c < classes; ++c) {
        const Floats score = load<lanes>(at + c * count);
        largest = score > largest ? score : largest;
      }
      for (int64_t c = 0; c < classes; ++c) {
        const Floats weight = exponential(load<lanes>(at + c * count) - largest);
        store<lanes>(at + c * count, weight);
        total += weight;
      }
      for (int64_t c = 0; c < classes; ++c) {
        store<lanes>(at + c * count, load<lanes>(at + c * count) / total);
      }
    }
  }
};

// sum(m) per feature.
struct WeightedSum {
  const Messages of;
  float* out;

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats sum[N] = {};
    for (int64_t e = of.first; e < of.last; ++e) {
      const float* row = of.row(e) + column;
      NUML_UNROLL
    for (int n = 0; n < N; ++n) {
        sum[n] += load<lanes>(row + n * kLanes) * of.weight[e];
      }
    }
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      store<lanes>(out + column + n * kLanes, sum[n]);
    }
  }
};

NUML_ONCE void weighted_sum(const Messages& messages, float* out) {
  over_columns(messages.width, WeightedSum{messages, out});
}

// out += x.
struct Add {
  const float* x;
  float* out;

  template <int N, int lanes>
  void run(int64_t column) const {
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      const int64_t at = column + n * kLanes;
      store<lanes>(out + at, load<lanes>(out + at) + load<lanes>(x + at));
    }
  }
};

NUML_ONCE void add_to(const float* x, int64_t count, float* out) {
  over_columns(count, Add{x, out});
}

struct Largest {
  const float* values;
  mutable Floats found;

  template <int N, int lanes>
  void run(int64_t column) const {
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      const Floats value = load<lanes>(values + column + n * kLanes);
      const Floats size = value < Floats{} ? -value : value;
      found = size > found ? size : found;
    }
  }
};

// Whether messages from a table need the shift before their softmax.
NUML_ONCE bool needs_shift(const float* table, int64_t count) {
  const Largest largest{table, Floats{}};
  over_columns(count, largest);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (largest.found[lane] > kUnshifted) {
      return true;
    }
  }
  return false;
}

struct Dot {
  const float* x;
  const float* y;
  mutable Floats sum;

  template <int N, int lanes>
  void run(int64_t column) const {
    NUML_UNROLL
    for (int n = 0; n < N; ++n) {
      sum += load<lanes>(x + column + n * kLanes) * load<lanes>(y + column + n * kLanes);
    }
  }
};

inline float sum(Floats x) {
  typedef float Four __attribute__((vector_size(16)));
  Four parts[kLanes / 4];
  memcpy(parts, &x, sizeof x);
  NUML_UNROLL
  for (int n = 1; n < kLanes / 4; ++n) {
    parts[0] += parts[n];
  }
  return (parts[0][0] + parts[0][1]) + (parts[0][2] + parts[0][3]);
}

NUML_ONCE float dot(const float* x, const float* y, int64_t count) {
  const Dot product{x, y, Floats{}};
  over_columns(count, product);
  return sum(product.sum);
}

}  // namespace
