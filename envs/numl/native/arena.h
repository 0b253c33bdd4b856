// The memory of a call, lists in it, and the way out of the call.
//
// The library links to C's library and not to C++'s: a compiler that does not ship one, such as
// PyPI's ziglang, would have to build it first. So there are no exceptions: a call that cannot
// continue jumps back to its beginning. Nothing in between may need a destructor: all memory
// belongs to an arena, which the caller frees.
#pragma once

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace numl {

// How a call ends.
enum Status : int32_t { kOk, kEventRefused, kNotFinite, kFailed };

// The most that one event may take.
constexpr size_t kMostMemory = size_t{512} << 20;

class Arena {
 public:
  explicit Arena(size_t most = kMostMemory) : most_(most) {}

  // Room for numbers, with some padding after them; aligned to 64 bytes, not initialised.
  void* bytes(int64_t count);
  float* floats(int64_t count) { return static_cast<float*>(bytes(4 * count)); }
  double* doubles(int64_t count) { return static_cast<double*>(bytes(8 * count)); }
  int32_t* integers(int64_t count) { return static_cast<int32_t*>(bytes(4 * count)); }

  // Reclaims all of it for the next call; more than most calls need is returned to the system.
  void reset();
  // Returns all of it to the system.
  void free();

  // End the call, with a message for the event's sender, or for whoever runs the server.
  [[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 2, 3)));
  [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));

  // Does the work of a call and returns how it ended; the reason goes to `error`, of `size` bytes.
  template <class Work>
  Status attempt(char* error, int64_t size, Work work) {
    error_ = error;
    size_ = size;
    const int ended = setjmp(beginning_);
    return ended ? static_cast<Status>(ended) : work();
  }

 private:
  struct Block {
    Block* before;
    size_t size;
    char* numbers;
  };
  void add_block(size_t size);

  Block* last_ = nullptr;
  size_t used_ = 0, total_ = 0, most_;
  jmp_buf beginning_;
  char* error_ = nullptr;
  int64_t size_ = 0;
};

// A growing list of plain data.
template <class T>
class List {
 public:
  List() = default;
  explicit List(Arena* arena) : arena_(arena) {}
  List(Arena* arena, int64_t size) : arena_(arena) { resize(size); }
  List(Arena* arena, const T* from, int64_t size) : arena_(arena) {
    reserve(size);
    size_ = size;
    if (size > 0) {
      memcpy(data_, from, size * sizeof(T));
    }
  }

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }

  void reserve(int64_t room) {
    if (room <= room_) {
      return;
    }
    T* larger = static_cast<T*>(arena_->bytes(room * static_cast<int64_t>(sizeof(T))));
    if (size_ > 0) {
      memcpy(larger, data_, size_ * sizeof(T));
    }
    data_ = larger;
    room_ = room;
  }

  // New elements are zero.
  void resize(int64_t size) {
    reserve(size);
    if (size > size_) {
      memset(static_cast<void*>(data_ + size_), 0, (size - size_) * sizeof(T));
    }
    size_ = size;
  }

  void assign(int64_t size, T value) {
    reserve(size);
    size_ = size;
    for (T& each : *this) {
      each = value;
    }
  }

  void clear() { size_ = 0; }
  void pop_back() { --size_; }

  void push_back(T value) {
    if (size_ == room_) {
      reserve(size_ < 16 ? 32 : 2 * size_);
    }
    data_[size_++] = value;
  }

 private:
  Arena* arena_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0, room_ = 0;
};

// 0, 1, 2, ...
inline List<int32_t> numbers_to(Arena* arena, int32_t count) {
  List<int32_t> numbers(arena, count);
  for (int32_t i = 0; i < count; ++i) {
    numbers[i] = i;
  }
  return numbers;
}

// Each number becomes the sum of all numbers up to it.
inline void accumulate(List<int32_t>* numbers) {
  for (int64_t i = 1; i < numbers->size(); ++i) {
    (*numbers)[i] += (*numbers)[i - 1];
  }
}

// The first place in an ascending list whose number is not below a value.
inline int32_t place_of(const List<int32_t>& numbers, int64_t value) {
  int64_t low = 0, high = numbers.size();
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    (numbers[middle] < value ? low : high) = numbers[middle] < value ? middle + 1 : middle;
  }
  return static_cast<int32_t>(low);
}

// A stable sort.
template <class T, class Less>
void sort(Arena* arena, List<T>* list, Less less) {
  constexpr int64_t run = 12;
  const int64_t count = list->size();
  for (int64_t first = 0; first < count; first += run) {
    const int64_t last = first + run < count ? first + run : count;
    for (int64_t i = first + 1; i < last; ++i) {
      const T moved = (*list)[i];
      int64_t at = i;
      for (; at > first && less(moved, (*list)[at - 1]); --at) {
        (*list)[at] = (*list)[at - 1];
      }
      (*list)[at] = moved;
    }
  }
  List<T> other(arena);
  other.reserve(count);
  T *from = list->data(), *to = other.data();
  for (int64_t width = run; width < count; width *= 2) {
    for (int64_t first = 0; first < count; first += 2 * width) {
      const int64_t middle = first + width < count ? first + width : count;
      const int64_t last = middle + width < count ? middle + width : count;
      int64_t a = first, b = middle;
      for (int64_t i = first; i < last; ++i) {
        const bool right = b < last && (a == middle || less(from[b], from[a]));
        to[i] = right ? from[b++] : from[a++];
      }
    }
    T* const sorted = to;
    to = from;
    from = sorted;
  }
  if (from != list->data()) {
    memcpy(list->data(), from, count * sizeof(T));
  }
}

}  // namespace numl
