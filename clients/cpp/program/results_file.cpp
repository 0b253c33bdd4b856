#include "results_file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace numl::program {
namespace {

constexpr hsize_t chunk_bytes = 1U << 16U;

hid_t type_of(const std::vector<float>&) { return H5T_NATIVE_FLOAT; }
hid_t type_of(const std::vector<std::int32_t>&) { return H5T_NATIVE_INT32; }
hid_t type_of(const std::vector<std::int64_t>&) { return H5T_NATIVE_INT64; }

}  // namespace

// Not named by the process alone: every container may have a process of that number.
ResultsFile::Temporary::Temporary(const std::string& beside) : path(beside + ".XXXXXX.part") {
  const int file = mkstemps(path.data(), 5);
  if (file < 0) throw FileError(beside + " cannot be written: " + std::strerror(errno));
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(file, 0666 & ~mask);  // what any other new file gets
  close(file);
}

ResultsFile::Temporary::~Temporary() { std::remove(path.c_str()); }

ResultsFile::ResultsFile(const std::string& path, const std::string& model)
    : path_(path),
      temporary_(path),
      file_(H5Fcreate(temporary_.path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose,
            path + " cannot be written") {
  for (const char* table : {"hit_table", "event_table"}) {
    const Handle group(H5Gcreate2(file_, table, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
                       path + " cannot be written");
  }
  const Handle text(H5Tcopy(H5T_C_S1), H5Tclose, path + " cannot be written");
  H5Tset_size(text, model.size() + 1);
  attribute("model", text, model.c_str());
}

void ResultsFile::add(const EventId& id, const Event& event, const Labels& labels) {
  const std::array<std::size_t, 3> widths = {labels.classes, labels.event_scores.size(),
                                             labels.vertex.size()};
  if (!widths_) widths_ = widths;
  if (widths != *widths_) {
    const auto told = [](const std::array<std::size_t, 3>& of) {
      return std::to_string(of[0]) + " classes, " + std::to_string(of[1]) + " event scores and " +
             std::to_string(of[2]) + " coordinates of a vertex";
    };
    throw Error(Error::Kind::refused, "its answer has " + told(widths) + ", the answers before " +
                                          told(*widths_) + ": ask servers of one model");
  }
  std::vector<std::int64_t> ids;
  ids.reserve(3 * event.hit_id.size());
  for (std::size_t i = 0; i < event.hit_id.size(); ++i) ids.insert(ids.end(), id.begin(), id.end());
  append("hit_table/event_id", ids, 3);
  append("hit_table/hit_id", event.hit_id, 1);
  append("hit_table/local_plane", event.local_plane, 1);
  append("hit_table/x_semantic", labels.semantic, labels.classes);
  append("hit_table/filter_score", labels.filter, 1);
  append("hit_table/semantic_label", labels.label, 1);
  append("event_table/event_id", std::vector<std::int64_t>(id.begin(), id.end()), 3);
  if (!labels.event_scores.empty()) {
    append("event_table/e_evt", labels.event_scores, labels.event_scores.size());
  }
  if (!labels.vertex.empty()) append("event_table/v_evt", labels.vertex, labels.vertex.size());
}

void ResultsFile::finish(bool complete) {
  // What h5py makes of a bool, and takes for one.
  const Handle boolean(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose, path_ + " cannot be written");
  const std::int8_t no = 0, yes = 1;
  H5Tenum_insert(boolean, "FALSE", &no);
  H5Tenum_insert(boolean, "TRUE", &yes);
  attribute("complete", boolean, complete ? &yes : &no);
  const bool flushed = H5Fflush(file_, H5F_SCOPE_GLOBAL) >= 0;
  const bool closed = file_.closed();
  if (!flushed || !closed || std::rename(temporary_.path.c_str(), path_.c_str()) != 0) {
    throw FileError(path_ + " cannot be written");
  }
}

void ResultsFile::discard() const { std::remove(temporary_.path.c_str()); }

template <typename T>
void ResultsFile::append(const std::string& name, const std::vector<T>& values, std::size_t width) {
  const std::string failed = path_ + " cannot be written: " + name;
  const hsize_t columns = width;
  const hsize_t rows = values.size() / width;
  if (!has(file_, name)) {
    const std::array<hsize_t, 2> none = {0, columns}, most = {H5S_UNLIMITED, columns};
    const std::array<hsize_t, 2> chunk = {std::max<hsize_t>(1, chunk_bytes / (columns * sizeof(T))),
                                          columns};
    const Handle space(H5Screate_simple(2, none.data(), most.data()), H5Sclose, failed);
    const Handle how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, failed);
    if (H5Pset_chunk(how, 2, chunk.data()) < 0 || H5Pset_shuffle(how) < 0 ||
        H5Pset_deflate(how, 1) < 0) {
      throw FileError(failed);
    }
    const Handle made(H5Dcreate2(file_, name.c_str(), type_of(values), space, H5P_DEFAULT, how,
                                 H5P_DEFAULT),
                      H5Dclose, failed);
  }
  if (rows == 0) return;
  const Handle dataset(H5Dopen2(file_, name.c_str(), H5P_DEFAULT), H5Dclose, failed);
  std::array<hsize_t, 2> shape{};
  {
    const Handle space(H5Dget_space(dataset), H5Sclose, failed);
    H5Sget_simple_extent_dims(space, shape.data(), nullptr);
  }
  const std::array<hsize_t, 2> start = {shape[0], 0}, count = {rows, columns};
  shape[0] += rows;
  if (H5Dset_extent(dataset, shape.data()) < 0) throw FileError(failed);
  const Handle space(H5Dget_space(dataset), H5Sclose, failed);
  const Handle memory(H5Screate_simple(2, count.data(), nullptr), H5Sclose, failed);
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) < 0 ||
      H5Dwrite(dataset, type_of(values), memory, space, H5P_DEFAULT, values.data()) < 0 ||
      H5Dflush(dataset) < 0) {  // a write alone may only fill the cache
    throw FileError(failed);
  }
}

void ResultsFile::attribute(const char* name, hid_t type, const void* value) {
  const std::string failed = path_ + " cannot be written: " + name;
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose, failed);
  const Handle made(H5Acreate2(file_, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
                    failed);
  if (H5Awrite(made, type, value) < 0) throw FileError(failed);
}

}  // namespace numl::program
