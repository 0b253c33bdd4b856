// An event as the tensors of a request, and the tensors of an answer as labels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numl/client.h"
#include "numl_wire.pb.h"

namespace numl {

inline constexpr const char* infer_method = "/inference.GRPCInferenceService/ModelInfer";

// Write an event's request over an earlier one. Throws Error::Kind::usage for columns of different
// length, planes that are none, and an event that is too long for a message.
void write_request(wire::InferRequest& request, const Event& event, const std::string& model,
                   const std::string& version);

// `plane_of_hit` is the event's local_plane. Throws Error::Kind::refused for an answer that does
// not fit the event, or that has numbers that are none.
Labels labels_of(const wire::InferResponse& answer, const std::vector<std::int32_t>& plane_of_hit);

}  // namespace numl
