// Events of a file in pynuml's HDF5 layout, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hdf5.h"
#include "numl/client.h"

namespace numl::program {

using EventId = std::array<std::int64_t, 3>;  // run, subrun, event; 0 where the file has none

// Memory follows the largest event, not the file. Members throw FileError.
class EventFile {
 public:
  explicit EventFile(const std::string& path);

  // In the order of event_table, then of their first rows.
  const std::vector<EventId>& ids() const { return ids_; }
  Event read(std::size_t index) const;

 private:
  struct Column {
    std::shared_ptr<Dataset> dataset;
    std::uint64_t part = 0;
  };
  struct Run {  // rows of one event that lie together
    EventId id;
    std::uint64_t start;
    std::uint64_t stop;
    std::size_t event = 0;
  };
  struct Table {
    std::string name;
    std::string where;
    std::map<std::string, Column> columns;
    std::vector<std::pair<std::int64_t, std::int64_t>> sequence;  // row in event_table, rows
    bool sequenced = false;
    std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> rows;  // by event

    bool has(const std::string& column) const { return columns.count(column) > 0; }
    const Column& column(const std::string& column) const;
  };

  Table open(const std::string& name) const;
  std::uint64_t common_rows(const Table& table, const std::vector<std::string>& names) const;
  std::vector<EventId> event_ids(const Table& table, std::uint64_t start, std::uint64_t stop) const;
  std::vector<Run> runs(const Table& table, std::uint64_t rows, const std::vector<EventId>& known,
                        bool& sequenced) const;
  template <typename T>
  std::vector<T> column(const Table& table, const std::string& name, std::size_t event) const;

  std::string path_;
  Handle file_;
  Table hits_, spacepoints_;
  std::array<std::string, 3> hit_columns_;  // local_plane, local_wire, local_time as named here
  std::vector<EventId> ids_;
};

}  // namespace numl::program
