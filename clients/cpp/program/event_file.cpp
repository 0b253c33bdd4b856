#include "event_file.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace numl::program {
namespace {

constexpr const char* sequence_name = "event_id.seq_cnt";
constexpr std::uint64_t chunk = 1U << 20U;
// More than any model takes; a table that claims more is damaged, or no table of hits.
constexpr std::uint64_t most_rows_of_event = 1'000'000;
// All their ids are held.
constexpr std::uint64_t most_events = 1U << 24U;

hid_t open_file(const std::string& path) {
  return H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
}

}  // namespace

EventFile::EventFile(const std::string& path)
    : path_(path), file_(open_file(path), H5Fclose, path + ": no such file, or not an HDF5 file") {
  const bool older = has(file_, "event_table");
  hits_ = open("hit_table");
  spacepoints_ = open("spacepoint_table");
  const bool since_25_4 = !hits_.has("local_plane") && hits_.has("view");
  hit_columns_ = since_25_4 ? std::array<std::string, 3>{"view", "proj", "drift"}
                            : std::array<std::string, 3>{"local_plane", "local_wire", "local_time"};

  std::vector<EventId> known;
  if (older) {
    const Table events = open("event_table");
    if (events.has("event")) {
      std::vector<std::string> present;
      for (const char* part : {"run", "subrun", "event"}) {
        if (events.has(part)) present.emplace_back(part);
      }
      const std::uint64_t rows = common_rows(events, present);
      if (rows > most_events) {
        throw FileError(events.where + " has " + std::to_string(rows) + " rows, more than " +
                        std::to_string(most_events) + ": split the file, or it is damaged");
      }
      known = event_ids(events, 0, rows);
    }
  }
  const std::uint64_t hits = common_rows(
      hits_, {"hit_id", hit_columns_[0], hit_columns_[1], hit_columns_[2], "integral", "rms"});
  const std::uint64_t spacepoints =
      common_rows(spacepoints_, {"spacepoint_id", "hit_id_u", "hit_id_v", "hit_id_y"});
  bool hits_sequenced = false, spacepoints_sequenced = false;
  auto hit_runs = runs(hits_, hits, known, hits_sequenced);
  auto spacepoint_runs = runs(spacepoints_, spacepoints, known, spacepoints_sequenced);

  ids_ = known;
  if (!hits_sequenced || !spacepoints_sequenced) {
    // Rows with the same three numbers are one event, wherever they are.
    std::map<EventId, std::size_t> numbers;
    ids_.clear();
    const auto number = [&](const EventId& id) {
      const auto [at, fresh] = numbers.emplace(id, ids_.size());
      if (fresh) ids_.push_back(id);
      return at->second;
    };
    for (const EventId& id : known) number(id);
    for (Run& run : hit_runs) run.event = number(run.id);
    for (Run& run : spacepoint_runs) run.event = number(run.id);
  }
  hits_.rows.resize(ids_.size());
  spacepoints_.rows.resize(ids_.size());
  for (const Run& run : hit_runs) hits_.rows[run.event].emplace_back(run.start, run.stop);
  for (const Run& run : spacepoint_runs) {
    spacepoints_.rows[run.event].emplace_back(run.start, run.stop);
  }
}

Event EventFile::read(std::size_t index) const {
  Event event;
  event.hit_id = column<std::int32_t>(hits_, "hit_id", index);
  event.local_plane = column<std::int32_t>(hits_, hit_columns_[0], index);
  event.local_wire = column<std::int32_t>(hits_, hit_columns_[1], index);
  event.local_time = column<float>(hits_, hit_columns_[2], index);
  event.integral = column<float>(hits_, "integral", index);
  event.rms = column<float>(hits_, "rms", index);
  event.spacepoint_id = column<std::int32_t>(spacepoints_, "spacepoint_id", index);
  const std::array<const char*, planes> ids = {"hit_id_u", "hit_id_v", "hit_id_y"};
  for (std::size_t p = 0; p < planes; ++p) {
    event.spacepoint_hit_id[p] = column<std::int32_t>(spacepoints_, ids[p], index);
  }
  return event;
}

const EventFile::Column& EventFile::Table::column(const std::string& column) const {
  const auto found = columns.find(column);
  if (found != columns.end()) return found->second;
  std::string present;
  for (const auto& [each, _] : columns) present += (present.empty() ? "" : ", ") + each;
  throw FileError(where + " has no column " + column + " (it has " +
                  (present.empty() ? "no column" : present) + ")");
}

EventFile::Table EventFile::open(const std::string& name) const {
  Table table{name, path_ + ": " + name, {}, {}, false, {}};
  if (!has(file_, name)) throw FileError(path_ + ": no " + name + " in it");
  const Handle group(H5Gopen2(file_, name.c_str(), H5P_DEFAULT), H5Gclose,
                     table.where + " is not in pynuml's layout (numlkit infer reads others)");
  const std::map<std::string, std::vector<std::string>> wide = {
      {"event_id", {"run", "subrun", "event"}}, {"hit_id", {"hit_id_u", "hit_id_v", "hit_id_y"}}};
  // Only what is read is opened: a column of text beside them harms nobody.
  const std::vector<std::string> wanted = {
      "event_id", "run", "subrun", "event", "hit_id", "local_plane", "local_wire", "local_time",
      "view", "proj", "drift", "integral", "rms", "spacepoint_id", "hit_id_u", "hit_id_v",
      "hit_id_y"};
  for (const std::string& each : names(group, table.where)) {
    if (std::find(wanted.begin(), wanted.end(), each) == wanted.end() || !has(group, each)) continue;
    auto dataset = std::make_shared<Dataset>(group, each, table.where + "/" + each);
    const auto parts = wide.find(each);
    if (dataset->flat() || dataset->width() == 1) {
      table.columns[each == "event_id" && dataset->flat() ? "event" : each] = {dataset, 0};
    } else if (parts != wide.end() && dataset->width() == parts->second.size()) {
      for (std::uint64_t i = 0; i < dataset->width(); ++i) {
        table.columns[parts->second[i]] = {dataset, i};
      }
    } else {
      throw FileError(dataset->where() + " has " + std::to_string(dataset->width()) + " columns");
    }
  }
  if (has(group, sequence_name)) {
    const Dataset sequence(group, sequence_name, table.where + "/" + sequence_name);
    if (sequence.width() != 2 || sequence.rows() > most_events) {
      throw FileError(sequence.where() + " is not a dataset of shape [events, 2]");
    }
    const auto events = sequence.read<std::int64_t>(0, sequence.rows(), 0);
    const auto counts = sequence.read<std::int64_t>(0, sequence.rows(), 1);
    for (std::size_t i = 0; i < events.size(); ++i) table.sequence.emplace_back(events[i], counts[i]);
    table.sequenced = true;
  }
  return table;
}

std::uint64_t EventFile::common_rows(const Table& table,
                                     const std::vector<std::string>& columns) const {
  const std::uint64_t rows = table.column(columns.front()).dataset->rows();
  for (const std::string& each : columns) {
    const std::uint64_t own = table.column(each).dataset->rows();
    if (own != rows) {
      throw FileError(table.where + "/" + each + " has " + std::to_string(own) + " rows, " +
                      table.name + "/" + columns.front() + " has " + std::to_string(rows));
    }
  }
  return rows;
}

std::vector<EventId> EventFile::event_ids(const Table& table, std::uint64_t start,
                                          std::uint64_t stop) const {
  std::vector<EventId> ids(stop - start, EventId{});
  const std::array<const char*, 3> parts = {"run", "subrun", "event"};
  for (std::size_t part = 0; part < 3; ++part) {
    if (!table.has(parts[part])) continue;
    const Column& column = table.column(parts[part]);
    const auto values = column.dataset->read<std::int64_t>(start, stop, column.part);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i][part] = values[i];
    if (!column.dataset->floating()) continue;
    const auto exact = column.dataset->read<double>(start, stop, column.part);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (std::abs(exact[i]) < 0x1p63 && exact[i] == std::floor(exact[i])) continue;
      throw FileError(table.where + ": " + parts[part] + " is " + std::to_string(exact[i]) +
                      " in row " + std::to_string(start + i) +
                      ": ids are whole numbers of 64 bits");
    }
  }
  return ids;
}

std::vector<EventFile::Run> EventFile::runs(const Table& table, std::uint64_t rows,
                                            const std::vector<EventId>& known,
                                            bool& sequenced) const {
  // The index is trusted only where it covers the table and names events in order.
  std::vector<Run> told;
  std::uint64_t at = 0;
  std::int64_t before = -1;
  bool covers = table.sequenced;
  for (const auto& [event, count] : table.sequence) {
    covers = covers && event > before && event < static_cast<std::int64_t>(known.size()) &&
             count >= 0 && static_cast<std::uint64_t>(count) <= rows - at;
    if (!covers) break;
    before = event;
    if (count == 0) continue;
    const auto number = static_cast<std::size_t>(event);
    told.push_back({known[number], at, at + static_cast<std::uint64_t>(count), number});
    at += static_cast<std::uint64_t>(count);
  }
  covers = covers && at == rows;
  sequenced = covers;
  if (!table.has("event")) {
    if (covers) return told;
    if (table.sequenced) {
      throw FileError(table.where + "/" + sequence_name + " contradicts the table's " +
                      std::to_string(rows) + " rows or event_table's " +
                      std::to_string(known.size()) + " events, and it has no event_id");
    }
    if (known.size() > 1) {
      throw FileError(table.where + " has no event_id, and event_table lists " +
                      std::to_string(known.size()) + " events");
    }
    return {{known.empty() ? EventId{} : known[0], 0, rows, 0}};
  }
  for (const char* part : {"run", "subrun", "event"}) {
    if (table.has(part) && table.column(part).dataset->rows() != rows) {
      throw FileError(table.where + "'s event ids have " +
                      std::to_string(table.column(part).dataset->rows()) + " rows, its columns " +
                      std::to_string(rows));
    }
  }
  std::vector<Run> found;
  for (std::uint64_t low = 0; low < rows; low += chunk) {
    const auto ids = event_ids(table, low, std::min(low + chunk, rows));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (found.empty() || found.back().id != ids[i]) found.push_back({ids[i], low + i, low + i, 0});
      ++found.back().stop;
    }
  }
  // Each run of one id must begin where the index has a block, and each block have that id.
  std::size_t run = 0;
  std::size_t begun = 0;
  for (const Run& block : told) {
    if (!sequenced) break;
    while (run + 1 < found.size() && found[run + 1].start <= block.start) ++run;
    if (found[run].start == block.start) ++begun;
    sequenced = found[run].id == block.id;
  }
  sequenced = sequenced && begun == found.size();
  return sequenced ? told : found;
}

template <typename T>
std::vector<T> EventFile::column(const Table& table, const std::string& name,
                                 std::size_t event) const {
  const Column& column = table.column(name);
  const Dataset& dataset = *column.dataset;
  std::uint64_t rows = 0;
  for (const auto& [start, stop] : table.rows[event]) rows += stop - start;
  if (rows > most_rows_of_event) {
    throw FileError(dataset.where() + " has " + std::to_string(rows) + " rows of one event");
  }
  std::vector<T> values;
  values.reserve(rows);
  const auto refuse = [&](const std::string& value) {
    throw FileError(dataset.where() + " row " + std::to_string(values.size()) + " of the event is " +
                    value + ": not an int32");
  };
  const bool missing = name.rfind("hit_id_", 0) == 0;  // NaN: no hit in this plane
  for (const auto& [start, stop] : table.rows[event]) {
    if constexpr (std::is_same_v<T, float>) {
      const auto part = dataset.read<float>(start, stop, column.part);
      values.insert(values.end(), part.begin(), part.end());
    } else if (dataset.floating()) {
      for (double value : dataset.read<double>(start, stop, column.part)) {
        if (missing && std::isnan(value)) value = -1;
        const bool whole = value >= std::numeric_limits<T>::min() &&
                           value <= std::numeric_limits<T>::max() && value == std::floor(value);
        if (!whole) refuse(std::to_string(value));
        values.push_back(static_cast<T>(value));
      }
    } else {
      for (const std::int64_t value : dataset.read<std::int64_t>(start, stop, column.part)) {
        // Above int64, what has no sign is negative here.
        const std::int64_t least = dataset.has_sign() ? std::numeric_limits<T>::min() : 0;
        if (value < least || value > std::numeric_limits<T>::max()) {
          refuse(dataset.has_sign() ? std::to_string(value)
                                    : std::to_string(static_cast<std::uint64_t>(value)));
        }
        values.push_back(static_cast<T>(value));
      }
    }
  }
  return values;
}

}  // namespace numl::program
