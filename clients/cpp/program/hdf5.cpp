#include "hdf5.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

namespace numl::program {
namespace {

// A dataset may claim more rows than it stores, and reading it takes time and memory for them all.
constexpr double most_claimed = 1U << 28U, most_deflated = 1032;

template <typename T>
hid_t memory_type();
template <>
hid_t memory_type<std::uint64_t>() { return H5T_NATIVE_UINT64; }
template <>
hid_t memory_type<std::int64_t>() { return H5T_NATIVE_INT64; }
template <>
hid_t memory_type<float>() { return H5T_NATIVE_FLOAT; }
template <>
hid_t memory_type<double>() { return H5T_NATIVE_DOUBLE; }

template <typename T, typename Stored>
std::vector<T> converted(std::vector<Stored> values) {
  if constexpr (std::is_same_v<T, Stored>) {
    return values;
  } else {
    std::vector<T> all(values.size());
    std::transform(values.begin(), values.end(), all.begin(),
                   [](Stored value) {
                     if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Stored>) {
                       constexpr Stored past = 0x1p63;  // as in numpy, also for NaN
                       if (!(value >= -past && value < past)) return std::numeric_limits<T>::min();
                     }
                     return static_cast<T>(value);
                   });
    return all;
  }
}

}  // namespace

Handle::Handle(hid_t id, Close close, const std::string& otherwise) : id_(id), close_(close) {
  if (id < 0) {
    close_ = nullptr;
    throw FileError(otherwise);
  }
}

void keep_quiet() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Dataset::Dataset(hid_t group, const std::string& name, const std::string& where)
    : where_(where), dataset_(H5Dopen2(group, name.c_str(), H5P_DEFAULT), H5Dclose,
                              where + " is not a dataset that can be read") {
  const Handle space(H5Dget_space(dataset_), H5Sclose, where + " has no shape");
  const int rank = H5Sget_simple_extent_ndims(space);
  std::array<hsize_t, 2> shape = {0, 1};
  if (rank < 1 || rank > 2 || H5Sget_simple_extent_dims(space, shape.data(), nullptr) < 0) {
    throw FileError(where + " is not a dataset of shape [rows] or [rows, columns]");
  }
  rows_ = shape[0];
  width_ = shape[1];
  flat_ = rank == 1;
  const Handle type(H5Dget_type(dataset_), H5Tclose, where + " has no type");
  const H5T_class_t kind = H5Tget_class(type);
  if (kind != H5T_INTEGER && kind != H5T_ENUM && kind != H5T_FLOAT) {  // booleans are H5T_ENUM
    throw FileError(where + " does not hold numbers");
  }
  floating_ = kind == H5T_FLOAT;
  bytes_ = H5Tget_size(type);
  const double claimed = static_cast<double>(rows_) * static_cast<double>(width_ * bytes_);
  const hsize_t held = H5Dget_storage_size(dataset_);
  if (claimed > most_claimed && claimed > most_deflated * static_cast<double>(held)) {
    throw FileError(where + " claims " + std::to_string(std::llround(claimed / 1e9)) +
                    " GB, and stores " + std::to_string(held) + " bytes");
  }
  has_sign_ = floating_ || H5Tget_sign(type) != H5T_SGN_NONE;
}

// HDF5 itself would clip what T cannot hold, and round halves up where byte orders differ.
template <typename T>
std::vector<T> Dataset::read(std::uint64_t start, std::uint64_t stop, std::uint64_t column) const {
  if (floating_ && bytes_ <= sizeof(float)) return converted<T>(stored<float>(start, stop, column));
  if (floating_) return converted<T>(stored<double>(start, stop, column));
  if (has_sign_) return converted<T>(stored<std::int64_t>(start, stop, column));
  return converted<T>(stored<std::uint64_t>(start, stop, column));
}

template <typename T>
std::vector<T> Dataset::stored(std::uint64_t start, std::uint64_t stop,
                               std::uint64_t column) const {
  std::vector<T> values(stop - start);
  if (values.empty()) return values;
  const std::string failed = where_ + " cannot be read: damaged, or compressed with a filter that "
                                      "plain HDF5 lacks";
  const Handle file(H5Dget_space(dataset_), H5Sclose, failed);
  const std::array<hsize_t, 2> first = {start, column};
  const std::array<hsize_t, 2> count = {stop - start, 1};
  const Handle memory(H5Screate_simple(1, count.data(), nullptr), H5Sclose, failed);
  if (H5Sselect_hyperslab(file, H5S_SELECT_SET, first.data(), nullptr, count.data(), nullptr) < 0 ||
      H5Dread(dataset_, memory_type<T>(), memory, file, H5P_DEFAULT, values.data()) < 0) {
    throw FileError(failed);
  }
  return values;
}

template std::vector<std::int64_t> Dataset::read(std::uint64_t, std::uint64_t, std::uint64_t) const;
template std::vector<float> Dataset::read(std::uint64_t, std::uint64_t, std::uint64_t) const;
template std::vector<double> Dataset::read(std::uint64_t, std::uint64_t, std::uint64_t) const;

std::vector<std::string> names(hid_t group, const std::string& where) {
  std::vector<std::string> found;
  const auto note = [](hid_t, const char* name, const H5L_info_t*, void* into) -> herr_t {
    static_cast<std::vector<std::string>*>(into)->emplace_back(name);
    return 0;
  };
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, note, &found) < 0) {
    throw FileError(where + " cannot be listed");
  }
  return found;
}

bool has(hid_t group, const std::string& name) {
  return H5Lexists(group, name.c_str(), H5P_DEFAULT) > 0 &&
         H5Oexists_by_name(group, name.c_str(), H5P_DEFAULT) > 0;
}

}  // namespace numl::program
