#include "arena.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

namespace numl {
namespace {

// What is kept for the next event.
constexpr size_t kKeptMemory = size_t{64} << 20;
constexpr size_t kLeastBlock = size_t{1} << 20;

}  // namespace

void Arena::add_block(size_t size) {
  void* memory = malloc(sizeof(Block) + 64 + size);
  if (memory == nullptr) {
    fail("no memory left");
  }
  char* numbers = static_cast<char*>(memory) + sizeof(Block);
  numbers += -reinterpret_cast<uintptr_t>(numbers) % 64;
  Block* block = static_cast<Block*>(memory);
  *block = {last_, size, numbers};
  last_ = block;
  total_ += size;
  used_ = 0;
}

void* Arena::bytes(int64_t count) {
  // Vectors are loaded whole, up to 64 bytes behind the last number.
  const size_t wanted = (static_cast<size_t>(count) + 127) / 64 * 64;
  if (last_ == nullptr || used_ + wanted > last_->size) {
    const size_t size = wanted > kLeastBlock ? wanted : kLeastBlock;
    if (total_ + size > most_) {
      refuse("the event is too large: it would take more than %zu MiB", most_ >> 20);
    }
    add_block(size);
  }
  void* at = last_->numbers + used_;
  used_ += wanted;
  return at;
}

void Arena::reset() {
  // One block for what the last event took in several, unless that was unusually much.
  const size_t size = total_;
  if (last_ != nullptr && (last_->before != nullptr || size > kKeptMemory)) {
    free();
    if (size <= kKeptMemory) {
      attempt(nullptr, 0, [&] {
        add_block(size);
        return kOk;
      });
    }
  }
  used_ = 0;
}

void Arena::free() {
  while (last_ != nullptr) {
    Block* const before = last_->before;
    ::free(last_);
    last_ = before;
  }
  used_ = total_ = 0;
}

void Arena::refuse(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error_, size_, format, values);
  va_end(values);
  longjmp(beginning_, kEventRefused);
}

void Arena::fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error_, size_, format, values);
  va_end(values);
  longjmp(beginning_, kFailed);
}

}  // namespace numl
