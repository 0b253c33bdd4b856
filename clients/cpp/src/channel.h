// Addresses, credentials, and what the end of a call means.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "numl/client.h"

namespace numl {

struct Address {
  std::string target;  // host:port
  bool tls = false;

  // Throws Error::Kind::usage.
  static Address parse(const std::string& text);
  std::string url() const { return (tls ? "grpcs://" : "grpc://") + target; }
};

// How long a server with a request is silent before it is asked whether it is there, and how long
// it may then take. Tests shorten it.
struct Keepalive {
  int after_ms = 15000;
  int timeout_ms = 10000;
};
extern Keepalive keepalive;

bool is_port(const std::string& text);
bool is_loopback(const std::string& target);  // host:port

// Throw Error::Kind::usage.
std::string read_file(const std::string& path, const std::string& what);
std::string read_pem(const std::string& path, const std::string& what);
std::string read_token(const std::string& path);
std::shared_ptr<grpc::Channel> connect(const Address& address, const Options& options);

// What the end of a call means for the request.
enum class End { answered, away, above_rate, no_model, deadline, refused };
End meaning(const grpc::Status& status);

// A server's error in one line, without Triton's wrapping and without a traceback.
std::string reason(const grpc::Status& status);

}  // namespace numl
