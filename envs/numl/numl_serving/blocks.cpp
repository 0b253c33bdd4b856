// The networks' blocks for compiled iterations. A block is what one kind of edge does to the nodes
// that receive its messages: they are aggregated, and the aggregate and the node's own features go
// through two layers,
//
//     f(output(f(hidden([inputs])))),   f = mish (NuGraph3) or tanh (NuGraph2).
//
// A few nodes at a time take the whole way: what they need is then in the first-level cache, while
// the intermediate features of an event are not, and matrix products need no memory of their own.
//
// numl_serving.compile links this into the library that AOTInductor makes; `block_ops` declares it
// to torch and says what it computes. It uses torch's stable C interface alone.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <vector>

namespace {

// As wide as the registers are: wider ones the compiler would take apart, one by one. A tile of a
// product is about as many rows as the registers hold at kColumns vectors each.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 6;
#elif defined(__AVX__)
constexpr int kLanes = 8, kRows = 3;
#else
constexpr int kLanes = 4, kRows = 3;
#endif
constexpr int kColumns = 4;
constexpr int64_t kNodes = 12;  // that take the way together: whole tiles
static_assert(kNodes % kRows == 0, "a tile would end outside the buffers");

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));

template <int lanes>
inline Floats load(const float* from) {
  Floats value = {};
  std::memcpy(&value, from, lanes * sizeof(float));
  return value;
}

template <int lanes>
inline void store(float* to, Floats value) {
  std::memcpy(to, &value, lanes * sizeof(float));
}

// Calls `work.run<N, lanes>(column)` for all columns, N vectors of so many lanes at a time.
template <class Work>
inline void over_columns(int64_t width, const Work& work) {
  int64_t column = 0;
  for (; column + kColumns * kLanes <= width; column += kColumns * kLanes) {
    work.template run<kColumns, kLanes>(column);
  }
  for (; column + kLanes <= width; column += kLanes) {
    work.template run<1, kLanes>(column);
  }
  for (; column + 4 <= width; column += 4) {
    work.template run<1, 4>(column);
  }
  for (; column < width; ++column) {
    work.template run<1, 1>(column);
  }
}

// exp(x) for x <= 80, to the last digit or two of float32; NaN stays NaN. Method and coefficients
// of Cephes' expf: x = n log(2) + r, and a polynomial in r.
inline Floats exponential(Floats x) {
  // Adding 1.5 2^23 rounds to a whole number, which then stands in the lowest bits.
  const float whole = 12582912.0f;
  const Floats shifted = x * 1.44269504088896341f + whole;
  const Floats n = shifted - whole;
  const Floats r = x - n * 0.693359375f - n * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  Bits exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent << 23) + (127u << 23);
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  const Floats smallest = Floats{} - 87.0f;  // what is below would not be a normal number
  return x < smallest ? Floats{} : p * power;
}

// As `mish` in networks/common.py.
struct Mish {
  Floats operator()(Floats x) const {
    const Floats limit = Floats{} + 20.0f;
    const Floats e = exponential(x > limit ? limit : x);
    const Floats n = e * e * 0.5f + e;
    return x * (n / (n + 1.0f));
  }
};

// The approximation of Eigen's generic_fast_tanh_float: a minimax fit within the limit. Beyond it
// the value stays, at most 3e-7 below 1.
struct Tanh {
  Floats operator()(Floats x) const {
    const Floats limit = Floats{} + 7.90531110763549805f;
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
    return x * p / q;
  }
};

struct Identity {
  Floats operator()(Floats x) const { return x; }
};

struct Layer {
  const float* weight;  // [inputs, outputs]
  const float* bias;    // [outputs]; null: zeros
  int64_t inputs, outputs;
};

// f(x W + b) for kRows rows.
template <class F>
struct Product {
  const Layer& layer;
  const float* x;
  float* out;

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats sums[kRows][N];
    for (int n = 0; n < N; ++n) {
      const Floats first =
          layer.bias ? load<lanes>(layer.bias + column + n * kLanes) : Floats{};
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        sums[row][n] = first;
      }
    }
    const float* weight = layer.weight + column;
    for (int64_t k = 0; k < layer.inputs; ++k, weight += layer.outputs) {
      Floats weights[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        weights[n] = load<lanes>(weight + n * kLanes);
      }
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const float value = x[row * layer.inputs + k];
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          sums[row][n] += weights[n] * value;
        }
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        store<lanes>(out + row * layer.outputs + column + n * kLanes, F()(sums[row][n]));
      }
    }
  }
};

// f(x W + b) for rows in whole tiles.
template <class F>
void apply(const Layer& layer, const float* x, int64_t rows, float* out) {
  for (int64_t row = 0; row < rows; row += kRows) {
    over_columns(layer.outputs,
                 Product<F>{layer, x + row * layer.inputs, out + row * layer.outputs});
  }
}

// Calls `fill(node, to)`, which writes what a layer takes of a node, for the nodes [first, last),
// and then `apply(inputs, rows, out)` for some of them at a time.
template <class Fill, class Apply>
void over_nodes(int64_t first, int64_t last, int64_t inputs, int64_t outputs, float* out,
                Fill fill, Apply apply) {
  // Rows behind the last node hold what was there before: numbers that nobody reads.
  std::vector<float> rows(kNodes * inputs), rest(kNodes * outputs);
  for (int64_t node = first; node < last; node += kNodes) {
    const int64_t nodes = std::min(kNodes, last - node);
    for (int64_t n = 0; n < nodes; ++n) {
      fill(node + n, rows.data() + n * inputs);
    }
    if (nodes == kNodes) {
      apply(rows.data(), kNodes, out + node * outputs);
    } else {
      apply(rows.data(), (nodes + kRows - 1) / kRows * kRows, rest.data());
      std::memcpy(out + node * outputs, rest.data(), nodes * outputs * sizeof(float));
    }
  }
}

// Two layers on the nodes [first, last).
template <class F, class Fill>
void over_nodes(int64_t first, int64_t last, const Layer& hidden, const Layer& output, float* out,
                Fill fill) {
  std::vector<float> middle(kNodes * hidden.outputs);
  over_nodes(first, last, hidden.inputs, output.outputs, out, fill,
             [&](const float* inputs, int64_t rows, float* to) {
               apply<F>(hidden, inputs, rows, middle.data());
               apply<F>(output, middle.data(), rows, to);
             });
}

struct Copy {
  const float* from;
  float* to;

  template <int N, int lanes>
  void run(int64_t column) const {
    for (int n = 0; n < N; ++n) {
      store<lanes>(to + column + n * kLanes, load<lanes>(from + column + n * kLanes));
    }
  }
};

// The messages weight[e] table[rows[e]] that one node receives.
struct Messages {
  const float* table;
  const int64_t* rows;
  const float* weight;
  int64_t width;
  int64_t first, last;

  const float* row(int64_t e) const { return table + rows[e] * width; }
};

// The messages of all nodes, sorted by them.
struct Segments {
  const float* table;
  const int64_t* rows;
  const float* weight;
  int64_t width;
  const int64_t* offsets;

  Messages messages(int64_t node) const {
    return {table, rows, weight, width, offsets[node], offsets[node + 1]};
  }
};

// sum(m softmax(m)) per feature, with the largest message subtracted before the exponential, so
// that no size of message overflows. The messages are made anew for each of the two passes: a
// node's few rows are in the cache.
struct SoftmaxSum {
  const Messages of;
  float* out;

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats largest[N] = {}, total[N] = {}, sum[N] = {};
    for (int64_t e = of.first; e < of.last; ++e) {
      const float* row = of.row(e) + column;
      for (int n = 0; n < N; ++n) {
        const Floats message = load<lanes>(row + n * kLanes) * of.weight[e];
        largest[n] = e == of.first || message > largest[n] ? message : largest[n];
      }
    }
    for (int64_t e = of.first; e < of.last; ++e) {
      const float* row = of.row(e) + column;
      for (int n = 0; n < N; ++n) {
        const Floats message = load<lanes>(row + n * kLanes) * of.weight[e];
        const Floats weight = exponential(message - largest[n]);
        total[n] += weight;
        sum[n] += weight * message;
      }
    }
    for (int n = 0; n < N; ++n) {
      const Floats mean = of.first < of.last ? sum[n] / total[n] : sum[n];
      store<lanes>(out + column + n * kLanes, mean);
    }
  }
};

struct WeightedSum {
  const Messages of;
  float* out;

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats sum[N] = {};
    for (int64_t e = of.first; e < of.last; ++e) {
      const float* row = of.row(e) + column;
      for (int n = 0; n < N; ++n) {
        sum[n] += load<lanes>(row + n * kLanes) * of.weight[e];
      }
    }
    for (int n = 0; n < N; ++n) {
      store<lanes>(out + column + n * kLanes, sum[n]);
    }
  }
};

// f(bias + the sum of all messages of a spacepoint), whose segments are those of the planes.
struct NexusSum {
  const Segments& of;
  int64_t spacepoint, spacepoints, planes;
  const float* bias;
  float* out;

  template <int N, int lanes>
  void run(int64_t column) const {
    Floats sum[N];
    for (int n = 0; n < N; ++n) {
      sum[n] = load<lanes>(bias + column + n * kLanes);
    }
    for (int64_t plane = 0; plane < planes; ++plane) {
      const Messages messages = of.messages(plane * spacepoints + spacepoint);
      for (int64_t e = messages.first; e < messages.last; ++e) {
        for (int n = 0; n < N; ++n) {
          sum[n] += load<lanes>(messages.row(e) + column + n * kLanes);
        }
      }
    }
    for (int n = 0; n < N; ++n) {
      store<lanes>(out + column + n * kLanes, Tanh()(sum[n]));
    }
  }
};

bool contiguous(std::initializer_list<AtenTensorHandle> tensors) {
  for (AtenTensorHandle tensor : tensors) {
    int64_t *sizes, *strides, dimensions, numbers, expected = 1;
    if (aoti_torch_get_dim(tensor, &dimensions) || aoti_torch_get_sizes(tensor, &sizes) ||
        aoti_torch_get_strides(tensor, &strides) || aoti_torch_get_numel(tensor, &numbers)) {
      return false;
    }
    for (int64_t d = dimensions - 1; numbers > 0 && d >= 0; --d) {
      if (sizes[d] > 1 && strides[d] != expected) {
        return false;
      }
      expected *= sizes[d];
    }
  }
  return true;
}

int64_t size(AtenTensorHandle tensor, int64_t dimension) {
  int64_t found = 0;
  aoti_torch_get_size(tensor, dimension, &found);
  return found;
}

template <typename T = float>
T* data(AtenTensorHandle tensor) {
  void* pointer = nullptr;
  aoti_torch_get_data_ptr(tensor, &pointer);
  return static_cast<T*>(pointer);
}

bool make(std::initializer_list<int64_t> sizes, AtenTensorHandle* result) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d > 0; --d) {
    strides[d - 1] = strides[d] * sizes.begin()[d];
  }
  return !aoti_torch_empty_strided(sizes.size(), sizes.begin(), strides.data(),
                                   aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0,
                                   result);
}

// A layer of stacks [..., inputs, outputs] and [..., outputs].
Layer layer(AtenTensorHandle weight, int64_t number, AtenTensorHandle bias = nullptr) {
  int64_t dimensions = 0;
  aoti_torch_get_dim(weight, &dimensions);
  const int64_t inputs = size(weight, dimensions - 2), outputs = size(weight, dimensions - 1);
  return {data(weight) + number * inputs * outputs,
          bias ? data(bias) + number * outputs : nullptr, inputs, outputs};
}

// Whether the parts are all the nodes, and a layer takes what it is given.
bool fits(const int64_t* sizes, int64_t parts, int64_t nodes, const Layer& hidden,
          int64_t inputs) {
  return std::accumulate(sizes, sizes + parts, int64_t{0}) == nodes && hidden.inputs == inputs;
}

}  // namespace

extern "C" AOTITorchError aoti_torch_cpu_gated_block(
    AtenTensorHandle target,
    AtenTensorHandle source,
    AtenTensorHandle rows,
    AtenTensorHandle gate,
    AtenTensorHandle offsets,
    const int64_t* sizes,
    int64_t parts,
    AtenTensorHandle hidden_weight,
    AtenTensorHandle hidden_bias,
    AtenTensorHandle output_weight,
    AtenTensorHandle output_bias,
    AtenTensorHandle* result) {
  if (!contiguous({target, source, rows, gate, offsets, hidden_weight, hidden_bias, output_weight,
                   output_bias}) ||
      !fits(sizes, parts, size(target, 0), layer(hidden_weight, 0),
            size(source, 1) + size(target, 1)) ||
      !make({size(target, 0), size(output_weight, 2)}, result)) {
    return AOTI_TORCH_FAILURE;
  }
  const int64_t own = size(target, 1), width = size(source, 1);
  const float* targets = data(target);
  const Segments segments = {data(source), data<int64_t>(rows), data(gate), width,
                             data<int64_t>(offsets)};
  const auto fill = [=](int64_t node, float* to) {
    over_columns(width, SoftmaxSum{segments.messages(node), to});
    over_columns(own, Copy{targets + node * own, to + width});
  };
  int64_t first = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t last = first + sizes[part];
    over_nodes<Mish>(first, last, layer(hidden_weight, part, hidden_bias),
                     layer(output_weight, part, output_bias), data(*result), fill);
    first = last;
  }
  return AOTI_TORCH_SUCCESS;
}

extern "C" AOTITorchError aoti_torch_cpu_class_block(
    AtenTensorHandle target,
    AtenTensorHandle given,
    AtenTensorHandle source,
    AtenTensorHandle rows,
    AtenTensorHandle weights,
    AtenTensorHandle offsets,
    const int64_t* sizes,
    int64_t parts,
    AtenTensorHandle hidden_weight,
    AtenTensorHandle hidden_bias,
    AtenTensorHandle output_weight,
    AtenTensorHandle output_bias,
    AtenTensorHandle* result) {
  const int64_t classes = size(target, 0), nodes = size(target, 1), own = size(target, 2);
  const int64_t sources = size(source, 1), width = size(source, 2), shared = size(given, 1);
  const int64_t messages = size(rows, 0), outputs = size(output_weight, 3);
  if (!contiguous({target, given, source, rows, weights, offsets, hidden_weight, hidden_bias,
                   output_weight, output_bias}) ||
      !fits(sizes, parts, nodes, layer(hidden_weight, 0), own + width + 2 * shared) ||
      !make({classes, nodes, outputs}, result)) {
    return AOTI_TORCH_FAILURE;
  }
  for (int64_t c = 0; c < classes; ++c) {
    const float* targets = data(target) + c * nodes * own;
    const float* givens = data(given);
    const Segments learned = {data(source) + c * sources * width, data<int64_t>(rows),
                              data(weights) + c * messages, width, data<int64_t>(offsets)};
    Segments common = learned;
    common.table = givens;
    common.width = shared;
    const auto fill = [=](int64_t node, float* to) {
      over_columns(own, Copy{targets + node * own, to});
      over_columns(shared, Copy{givens + node * shared, to + own});
      to += own + shared;
      over_columns(width, WeightedSum{learned.messages(node), to});
      over_columns(shared, WeightedSum{common.messages(node), to + width});
    };
    int64_t first = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t last = first + sizes[part], number = part * classes + c;
      over_nodes<Tanh>(first, last, layer(hidden_weight, number, hidden_bias),
                       layer(output_weight, number, output_bias),
                       data(*result) + c * nodes * outputs, fill);
      first = last;
    }
  }
  return AOTI_TORCH_SUCCESS;
}

extern "C" AOTITorchError aoti_torch_cpu_class_nexus(
    AtenTensorHandle hits,
    AtenTensorHandle rows,
    AtenTensorHandle offsets,
    const int64_t* sizes,
    int64_t planes,
    int64_t spacepoints,
    AtenTensorHandle hidden_weight,
    AtenTensorHandle hidden_bias,
    AtenTensorHandle output_weight,
    AtenTensorHandle output_bias,
    AtenTensorHandle* result) {
  const int64_t classes = size(hits, 0), senders = size(hits, 1), width = size(hits, 2);
  const int64_t narrow = size(hidden_weight, 3), outputs = size(output_weight, 2);
  if (!contiguous({hits, rows, offsets, hidden_weight, hidden_bias, output_weight, output_bias}) ||
      !fits(sizes, planes, senders, layer(hidden_weight, 0), width) ||
      !make({classes, spacepoints, outputs}, result)) {
    return AOTI_TORCH_FAILURE;
  }
  std::vector<float> sent(senders * narrow);
  for (int64_t c = 0; c < classes; ++c) {
    const float* learned = data(hits) + c * senders * width;
    int64_t first = 0;
    for (int64_t plane = 0; plane < planes; ++plane) {
      const int64_t last = first + sizes[plane];
      const Layer own = layer(hidden_weight, plane * classes + c);
      over_nodes(
          first, last, width, narrow, sent.data(),
          [=](int64_t hit, float* to) { over_columns(width, Copy{learned + hit * width, to}); },
          [&](const float* inputs, int64_t count, float* to) {
            apply<Identity>(own, inputs, count, to);
          });
      first = last;
    }
    const Segments segments = {sent.data(), data<int64_t>(rows), nullptr, narrow,
                               data<int64_t>(offsets)};
    const float* bias = data(hidden_bias) + c * narrow;
    const Layer output = layer(output_weight, c, output_bias);
    over_nodes(
        0, spacepoints, narrow, outputs, data(*result) + c * spacepoints * outputs,
        [&](int64_t spacepoint, float* to) {
          over_columns(narrow, NexusSum{segments, spacepoint, spacepoints, planes, bias, to});
        },
        [&](const float* inputs, int64_t count, float* to) {
          apply<Tanh>(output, inputs, count, to);
        });
  }
  return AOTI_TORCH_SUCCESS;
}
