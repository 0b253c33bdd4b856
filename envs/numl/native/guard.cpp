// Keeps Triton's Python stub alive. Triton 2.51 compares a tensor's shape with its bytes in 64 bits
// that wrap: [2^62] and [-2^62] of four bytes each pass without data. The stub then asks numpy for an
// array of that shape, before any of the model's code runs, and does not survive numpy's refusal.
#include <stdint.h>

#include "library.h"

namespace {

// `PyArray_NewFromDescr` of numpy's C interface, as far as it is needed here.
using NewArray = void* (*)(void* type, void* description, int dimensions, const intptr_t* shape,
                           const intptr_t* strides, void* data, int flags, void* base);
constexpr int kNewArray = 94;
constexpr int kMostDimensions = 32;
constexpr intptr_t kMostElements = intptr_t{1} << 47;  // more have no addresses

NewArray new_array;

// Whether numpy would refuse the shape: it checks all sizes, even if one of them is 0.
bool impossible(int dimensions, const intptr_t* shape) {
  intptr_t elements = 1;
  for (int i = 0; i < dimensions; ++i) {
    if (shape[i] < 0) return true;
    if (shape[i] > 0 && (__builtin_mul_overflow(elements, shape[i], &elements) ||
                         elements > kMostElements)) {
      return true;
    }
  }
  return false;
}

// An array without elements for an impossible shape; the model sees the shape, and refuses it.
void* new_array_or_empty(void* type, void* description, int dimensions, const intptr_t* shape,
                         const intptr_t* strides, void* data, int flags, void* base) {
  static constexpr intptr_t kNone[kMostDimensions] = {};
  if (dimensions <= kMostDimensions && impossible(dimensions, shape)) shape = kNone;
  return new_array(type, description, dimensions, shape, strides, data, flags, base);
}

}  // namespace

void numl_guard_arrays(void** numpy) {
  if (numpy[kNewArray] != reinterpret_cast<void*>(new_array_or_empty)) {
    new_array = reinterpret_cast<NewArray>(numpy[kNewArray]);
    numpy[kNewArray] = reinterpret_cast<void*>(new_array_or_empty);
  }
}
