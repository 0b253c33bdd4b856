// Gated softmax aggregation for compiled iterations: what `gated_softmax_aggregate` in
// networks/common.py computes, in one pass over memory. Per segment and feature it is
//
//     sum(m softmax(m)),   m = gate[e] table[rows[e]]   for the segment's messages e,
//
// with the largest message subtracted before the exponential, so that no size of message
// overflows. A segment's messages are made anew from the table for each of the two passes: its
// few rows are in the first-level cache, while written out, the messages of an event are not.
//
// numl_serving.compile links this into the library that AOTInductor makes; `softmax_op` declares
// it to torch. It uses torch's stable C interface alone.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <cstring>

namespace {

// As wide as the registers are: wider ones the compiler would take apart, one by one.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline Floats load(const float* from, int64_t lanes) {
  Floats value = {};
  std::memcpy(&value, from, lanes * sizeof(float));
  return value;
}

inline void store(float* to, Floats value, int64_t lanes) {
  std::memcpy(to, &value, lanes * sizeof(float));
}

// exp(x) for x <= 0, to the last digit or two of float32; NaN stays NaN. Method and coefficients
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
  Ints exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent << 23) + (127 << 23);
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  const Floats smallest = Floats{} - 87.0f;  // what is below would not be a normal number
  return x < smallest ? Floats{} : p * power;
}

struct Messages {
  const float* table;
  const int64_t* rows;
  const float* gate;
  int64_t width;
  int64_t first, last;
};

// Aggregates N x `lanes` features of one segment that has messages.
template <int N>
void aggregate(const Messages& of, int64_t column, int64_t lanes, float* out) {
  Floats largest[N], total[N] = {}, sum[N] = {};
  for (int64_t e = of.first; e < of.last; ++e) {
    const float* row = of.table + of.rows[e] * of.width + column;
    for (int k = 0; k < N; ++k) {
      const Floats message = load(row + k * kLanes, lanes) * of.gate[e];
      largest[k] = e == of.first || message > largest[k] ? message : largest[k];
    }
  }
  for (int64_t e = of.first; e < of.last; ++e) {
    const float* row = of.table + of.rows[e] * of.width + column;
    for (int k = 0; k < N; ++k) {
      const Floats message = load(row + k * kLanes, lanes) * of.gate[e];
      const Floats weight = exponential(message - largest[k]);
      total[k] += weight;
      sum[k] += weight * message;
    }
  }
  for (int k = 0; k < N; ++k) {
    store(out + column + k * kLanes, sum[k] / total[k], lanes);
  }
}

bool contiguous(AtenTensorHandle tensor, int64_t dimensions) {
  int64_t *sizes, *strides, found, expected = 1;
  if (aoti_torch_get_dim(tensor, &found) || found != dimensions ||
      aoti_torch_get_sizes(tensor, &sizes) || aoti_torch_get_strides(tensor, &strides)) {
    return false;
  }
  for (int64_t d = dimensions - 1; d >= 0; --d) {
    if (sizes[d] > 1 && strides[d] != expected) {
      return false;
    }
    expected *= sizes[d];
  }
  return true;
}

template <typename T>
T* data(AtenTensorHandle tensor) {
  void* pointer = nullptr;
  aoti_torch_get_data_ptr(tensor, &pointer);
  return static_cast<T*>(pointer);
}

}  // namespace

extern "C" AOTITorchError aoti_torch_cpu_gated_softmax(
    AtenTensorHandle table,
    AtenTensorHandle rows,
    AtenTensorHandle gate,
    AtenTensorHandle offsets,
    AtenTensorHandle* result) {
  if (!contiguous(table, 2) || !contiguous(rows, 1) || !contiguous(gate, 1) ||
      !contiguous(offsets, 1)) {
    return AOTI_TORCH_FAILURE;
  }
  int64_t width, ends;
  aoti_torch_get_size(table, 1, &width);
  aoti_torch_get_size(offsets, 0, &ends);
  const int64_t segments = ends - 1;
  const int64_t sizes[] = {segments, width}, strides[] = {width, 1};
  if (aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_float32(),
                               aoti_torch_device_type_cpu(), 0, result)) {
    return AOTI_TORCH_FAILURE;
  }
  Messages of = {data<float>(table), data<int64_t>(rows), data<float>(gate), width, 0, 0};
  const int64_t* offset = data<int64_t>(offsets);
  for (int64_t segment = 0; segment < segments; ++segment) {
    float* out = data<float>(*result) + segment * width;
    of.first = offset[segment];
    of.last = offset[segment + 1];
    if (of.first == of.last) {
      std::memset(out, 0, width * sizeof(float));
      continue;
    }
    int64_t column = 0;
    for (; column + 4 * kLanes <= width; column += 4 * kLanes) {
      aggregate<4>(of, column, kLanes, out);
    }
    for (; column + kLanes <= width; column += kLanes) {
      aggregate<1>(of, column, kLanes, out);
    }
    if (column < width) {
      aggregate<1>(of, column, width - column, out);
    }
  }
  return AOTI_TORCH_SUCCESS;
}
