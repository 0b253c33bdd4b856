// HDF5's C library, with handles that close themselves and errors that are one line.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace numl::program {

// A file cannot be read or written; what() is one line.
class FileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  // Throws FileError with `otherwise` if HDF5 gave no handle.
  Handle(hid_t id, Close close, const std::string& otherwise);
  ~Handle() { if (close_ != nullptr) close_(id_); }
  Handle(Handle&& other) noexcept : id_(other.id_), close_(other.close_) { other.close_ = nullptr; }
  Handle& operator=(Handle&&) = delete;
  operator hid_t() const { return id_; }
  // Close it now; false if what HDF5 still held could not be written.
  bool closed() {
    const Close how = close_;
    close_ = nullptr;
    return how(id_) >= 0;
  }

 private:
  hid_t id_;
  Close close_;
};

// HDF5 prints its own error stack otherwise, and crashes at the end if a file could not be closed.
void keep_quiet();

// A dataset of numbers: [rows] or [rows, width].
class Dataset {
 public:
  // `where` is for messages. Throws FileError for anything else than numbers in that shape.
  Dataset(hid_t group, const std::string& name, const std::string& where);

  const std::string& where() const { return where_; }
  std::uint64_t rows() const { return rows_; }
  std::uint64_t width() const { return width_; }
  bool flat() const { return flat_; }
  bool floating() const { return floating_; }
  bool has_sign() const { return has_sign_; }

  // Rows `start` to `stop` of one column, converted as C++ does. T: std::int64_t, float or double.
  template <typename T>
  std::vector<T> read(std::uint64_t start, std::uint64_t stop, std::uint64_t column = 0) const;

 private:
  template <typename T>
  std::vector<T> stored(std::uint64_t start, std::uint64_t stop, std::uint64_t column) const;

  std::string where_;
  Handle dataset_;
  std::uint64_t rows_ = 0;
  std::uint64_t width_ = 1;
  bool flat_ = true;
  bool floating_ = false;
  bool has_sign_ = true;
  std::size_t bytes_ = 0;  // of a number
};

// Names of the datasets in a group, or of the groups and datasets in a file.
std::vector<std::string> names(hid_t group, const std::string& where);
bool has(hid_t group, const std::string& name);

}  // namespace numl::program
