// Memory for one event after the other.
#include <algorithm>
#include <string>

#include "graph.h"
#include "network.h"

namespace {

// The most that one event may take, and what is kept for the next one.
constexpr size_t kMostMemory = size_t{512} << 20;
constexpr size_t kKeptMemory = size_t{64} << 20;

}  // namespace

namespace numl {

void* Arena::bytes(int64_t count) {
  // Vectors are loaded whole, up to 64 bytes behind the last number.
  const size_t wanted = (static_cast<size_t>(count) + 127) / 64 * 64;
  if (blocks_.empty() || used_ + wanted > blocks_.back().size) {
    const size_t size = std::max(wanted, size_t{1} << 20);
    if (total_ + size > kMostMemory) {
      throw EventError("the event is too large: it would take more than " +
                       std::to_string(kMostMemory >> 20) + " MiB");
    }
    blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size + 64]), size});
    total_ += size;
    used_ = 0;
  }
  const auto start = reinterpret_cast<uintptr_t>(blocks_.back().memory.get());
  void* at = blocks_.back().memory.get() + ((start + 63) / 64 * 64 - start) + used_;
  used_ += wanted;
  return at;
}

float* Arena::floats(int64_t count) { return static_cast<float*>(bytes(4 * count)); }

int32_t* Arena::integers(int64_t count) { return static_cast<int32_t*>(bytes(4 * count)); }

void Arena::reset() {
  // One block for what the last event took in several, unless that was unusually much.
  const size_t size = total_;
  if (blocks_.size() > 1 || size > kKeptMemory) {
    blocks_.clear();
    total_ = 0;
    if (size <= kKeptMemory) {
      blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size + 64]), size});
      total_ = size;
    }
  }
  used_ = 0;
}

}  // namespace numl
