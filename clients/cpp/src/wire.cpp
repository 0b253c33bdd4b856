#include "wire.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace numl {
namespace {

constexpr std::array<const char*, planes> plane_names = {"u", "v", "y"};
constexpr std::int64_t most_columns = 1000;  // more classes than any model has
constexpr std::size_t most_bytes = std::numeric_limits<std::int32_t>::max();  // of a message

template <typename T>
void add(wire::InferRequest& request, const char* name, const char* datatype,
         const std::vector<T>& column, std::size_t rows) {
  static_assert(sizeof(T) == 4);
  if (column.size() != rows) {
    throw Error(Error::Kind::usage, std::string(name) + " has " + std::to_string(column.size()) +
                                        " rows, the first column of its table has " +
                                        std::to_string(rows));
  }
  wire::Tensor& tensor = *request.add_inputs();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.add_shape(static_cast<std::int64_t>(rows));
  request.add_raw_input_contents(rows == 0 ? nullptr : column.data(), rows * sizeof(T));
}

// An output as floats, row by row.
struct Output {
  std::size_t rows = 0;
  std::size_t width = 1;
  std::vector<float> values;
};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(Error::Kind::refused, "the server returned " + why);
}

std::optional<Output> find(const wire::InferResponse& answer, const std::string& name) {
  for (int i = 0; i < answer.outputs_size(); ++i) {
    const wire::Tensor& tensor = answer.outputs(i);
    if (tensor.name() != name) continue;
    if (tensor.datatype() != "FP32") refuse(name + " as " + tensor.datatype() + ", not FP32");
    if (i >= answer.raw_output_contents_size()) refuse("no values for " + name);
    if (tensor.shape_size() < 1 || tensor.shape_size() > 2) {
      refuse(name + " with " + std::to_string(tensor.shape_size()) + " dimensions");
    }
    const std::string& raw = answer.raw_output_contents(i);
    // Compared as a quotient: a product of what the server says may overflow.
    const std::int64_t rows = tensor.shape(0);
    const std::int64_t width = tensor.shape_size() == 2 ? tensor.shape(1) : 1;
    const auto count = static_cast<std::int64_t>(raw.size() / sizeof(float));
    const bool empty = rows == 0 || width == 0;
    // Without rows no bytes say that this is not so.
    if (width > most_columns) refuse(name + " with " + std::to_string(width) + " columns");
    const bool fits = raw.size() % sizeof(float) == 0 && rows >= 0 && width >= 0 &&
                      (empty ? count == 0 : count % width == 0 && count / width == rows);
    if (!fits) {
      refuse(name + " with " + std::to_string(raw.size()) + " bytes for shape [" +
             std::to_string(rows) + ", " + std::to_string(width) + "]");
    }
    Output output;
    output.rows = static_cast<std::size_t>(rows);
    output.width = static_cast<std::size_t>(width);
    output.values.resize(static_cast<std::size_t>(count));
    if (!raw.empty()) std::memcpy(output.values.data(), raw.data(), raw.size());
    if (!std::all_of(output.values.begin(), output.values.end(),
                     [](float value) { return std::isfinite(value); })) {
      refuse("NaN or infinity in " + name);
    }
    return output;
  }
  return std::nullopt;
}

// Put the planes' rows together, in the order of the event's hits. Returns the width.
std::size_t of_hits(const wire::InferResponse& answer, const std::string& name,
                    const std::vector<std::int32_t>& plane_of_hit, std::vector<float>& all) {
  std::array<Output, planes> parts;
  for (std::size_t p = 0; p < planes; ++p) {
    const std::string output = name + "_" + plane_names[p];
    auto found = find(answer, output);
    if (!found) refuse("no " + output);
    parts[p] = std::move(*found);
    const auto hits = static_cast<std::size_t>(
        std::count(plane_of_hit.begin(), plane_of_hit.end(), static_cast<std::int32_t>(p)));
    if (parts[p].rows != hits) {
      refuse(output + " with " + std::to_string(parts[p].rows) + " rows for " +
             std::to_string(hits) + " hits");
    }
    if (parts[p].width != parts[0].width || parts[p].width == 0) {
      refuse(name + " with " + std::to_string(parts[p].width) + " columns for plane " +
             plane_names[p]);
    }
  }
  const std::size_t width = parts[0].width;
  all.assign(plane_of_hit.size() * width, 0.0F);
  std::array<std::size_t, planes> row{};
  for (std::size_t hit = 0; hit < plane_of_hit.size(); ++hit) {
    const auto plane = static_cast<std::size_t>(plane_of_hit[hit]);
    const auto from = parts[plane].values.begin() + static_cast<std::ptrdiff_t>(row[plane]++ * width);
    std::copy_n(from, width, all.begin() + static_cast<std::ptrdiff_t>(hit * width));
  }
  return width;
}

}  // namespace

void write_request(wire::InferRequest& request, const Event& event, const std::string& model,
                   const std::string& version) {
  request.Clear();
  request.set_model_name(model);
  request.set_model_version(version);
  const std::size_t hits = event.hit_id.size();
  const std::size_t spacepoints = event.spacepoint_id.size();
  if (hits > most_bytes / 24 || spacepoints > most_bytes / 16 ||
      24 * hits + 16 * spacepoints > most_bytes - 4096) {  // 4 bytes a number; names, shapes
    throw Error(Error::Kind::usage, "the event has " + std::to_string(hits) + " hits and " +
                                        std::to_string(spacepoints) +
                                        " spacepoints, which exceed the 2 GiB of a request");
  }
  for (std::size_t row = 0; row < event.local_plane.size(); ++row) {
    const std::int32_t plane = event.local_plane[row];
    if (plane >= 0 && static_cast<std::size_t>(plane) < planes) continue;
    throw Error(Error::Kind::usage, "hit_table_local_plane: row " + std::to_string(row) + " is " +
                                        std::to_string(plane) + ", not 0, 1 or 2");
  }
  add(request, "hit_table_hit_id", "INT32", event.hit_id, hits);
  add(request, "hit_table_local_plane", "INT32", event.local_plane, hits);
  add(request, "hit_table_local_time", "FP32", event.local_time, hits);
  add(request, "hit_table_local_wire", "INT32", event.local_wire, hits);
  add(request, "hit_table_integral", "FP32", event.integral, hits);
  add(request, "hit_table_rms", "FP32", event.rms, hits);
  const auto& ids = event.spacepoint_hit_id;
  add(request, "spacepoint_table_spacepoint_id", "INT32", event.spacepoint_id, spacepoints);
  add(request, "spacepoint_table_hit_id_u", "INT32", ids[0], spacepoints);
  add(request, "spacepoint_table_hit_id_v", "INT32", ids[1], spacepoints);
  add(request, "spacepoint_table_hit_id_y", "INT32", ids[2], spacepoints);
}

Labels labels_of(const wire::InferResponse& answer, const std::vector<std::int32_t>& plane_of_hit) {
  Labels labels;
  labels.classes = of_hits(answer, "x_semantic", plane_of_hit, labels.semantic);
  if (of_hits(answer, "x_filter", plane_of_hit, labels.filter) != 1) {
    refuse("x_filter with several columns");
  }
  labels.label.reserve(plane_of_hit.size());
  for (auto row = labels.semantic.begin(); row != labels.semantic.end();
       row += static_cast<std::ptrdiff_t>(labels.classes)) {
    const auto end = row + static_cast<std::ptrdiff_t>(labels.classes);
    labels.label.push_back(static_cast<std::int32_t>(std::max_element(row, end) - row));
  }
  if (auto scores = find(answer, "e_evt")) labels.event_scores = std::move(scores->values);
  if (auto vertex = find(answer, "v_evt")) {
    if (vertex->values.size() != 3) {
      refuse("v_evt with " + std::to_string(vertex->values.size()) + " values, not x, y, z");
    }
    labels.vertex = std::move(vertex->values);
  }
  return labels;
}

}  // namespace numl
