// Labels in an HDF5 file, in the layout of numlkit infer's results.
#pragma once

#include <memory>
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
  ~ResultsFile();
  ResultsFile(const ResultsFile&) = delete;
  ResultsFile& operator=(const ResultsFile&) = delete;

  void add(const EventId& id, const Event& event, const Labels& labels);
  void finish(bool complete);

 private:
  template <typename T>
  void append(const std::string& name, const std::vector<T>& values, std::size_t width);
  void attribute(const char* name, const std::string& text);

  std::string path_;
  std::string temporary_;
  std::unique_ptr<Handle> file_;
};

}  // namespace numl::program
