// Labels in an HDF5 file, in the layout of numlkit infer's results.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "event_file.h"
#include "hdf5.h"
#include "numl/client.h"

namespace numl::program {

// The file appears under its name, replacing an earlier one, when it is finished; otherwise
// nothing is left. Members throw FileError.
class ResultsFile {
 public:
  ResultsFile(const std::string& path, const std::string& model);
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  // Throws Error::Kind::refused, and adds nothing, if the answer has other columns than the first.
  void add(const EventId& id, const Event& event, const Labels& labels);
  void finish(bool complete);
  // Leave nothing, also if no destructor runs; by any thread.
  void discard() const;

 private:
  // An empty file beside the results, of a name that no other has; removed if it is still there.
  struct Temporary {
    explicit Temporary(const std::string& beside);
    ~Temporary();
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    std::string path;
  };

  template <typename T>
  void append(const std::string& name, const std::vector<T>& values, std::size_t width);
  void attribute(const char* name, hid_t type, const void* value);

  std::string path_;
  std::optional<std::array<std::size_t, 3>> widths_;  // of an answer's columns
  Temporary temporary_;
  Handle file_;
};

}  // namespace numl::program
