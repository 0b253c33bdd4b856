#include "channel.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace numl {
namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Envoy's or HAProxy's answer to a client above its rate. gRPC's own limit has the same status.
bool is_above_rate(const grpc::Status& status) {
  const std::string& said = status.error_message();
  if (contains(said, "http2 header with status: 429")) return true;
  return status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
         !contains(said, "larger than max");
}

// What gRPC says where it can make no TLS of the files that it was given.
bool is_unusable(const grpc::Status& status) {
  return status.error_message().rfind("empty address list", 0) == 0;
}

// A file's bytes; none if it cannot be read. Without this way round, a folder would throw.
std::string bytes_of(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes ? bytes.str() : std::string();
}

// gRPC has authorities of its own; a site's are the host's.
std::string host_authorities() {
  const char* named = std::getenv("SSL_CERT_FILE");
  for (const char* path : {named, "/etc/ssl/certs/ca-certificates.crt",
                           "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"}) {
    if (path == nullptr) continue;
    std::string authorities = bytes_of(path);
    if (!authorities.empty()) return authorities;
  }
  return {};
}

}  // namespace

Keepalive keepalive;

bool is_port(const std::string& text) {
  return !text.empty() && text.size() <= 5 && text.front() != '0' &&
         text.find_first_not_of("0123456789") == std::string::npos && std::stoi(text) <= 65535;
}

bool is_loopback(const std::string& target) {
  const auto starts = [&](const char* text) { return target.rfind(text, 0) == 0; };
  return starts("127.") || starts("[::1]:") || starts("localhost:");
}

Address Address::parse(const std::string& text) {
  Address address;
  address.target = text;
  const auto end = text.find("://");
  if (end != std::string::npos) {
    const std::string scheme = text.substr(0, end);
    if (scheme != "grpc" && scheme != "grpcs") {
      throw Error(Error::Kind::usage, text + ": the scheme must be grpc:// or grpcs://");
    }
    address.tls = scheme == "grpcs";
    address.target = text.substr(end + 3);
  }
  if (address.target.empty() || address.target.find_first_of("/ @?#") != std::string::npos) {
    throw Error(Error::Kind::usage, text + ": not an address, write it as host:port");
  }
  const auto bracket = address.target.rfind(']');
  const auto colon = address.target.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon == std::string::npos) {
    address.target += address.tls ? ":443" : ":8001";
  } else if (!is_port(address.target.substr(colon + 1))) {
    throw Error(Error::Kind::usage, text + ": the port must be a number from 1 to 65535");
  }
  return address;
}

std::string read_file(const std::string& path, const std::string& what) {
  std::string text = bytes_of(path);
  if (text.empty()) throw Error(Error::Kind::usage, path + ": no " + what + " to read");
  return text;
}

// A damaged file, or a pair that does not match, only gRPC notices, and only when it connects.
std::string read_pem(const std::string& path, const std::string& what) {
  std::string text = read_file(path, what);
  const char* end = what == "private key" ? "PRIVATE KEY-----" : "CERTIFICATE-----";
  if (!contains(text, end)) throw Error(Error::Kind::usage, path + ": no " + what + " in PEM form");
  return text;
}

std::string read_token(const std::string& path) {
  std::string token = read_file(path, "token");
  token.erase(token.find_last_not_of(" \r\n\t") + 1);
  token.erase(0, token.find_first_not_of(" \r\n\t"));
  if (token.empty()) throw Error(Error::Kind::usage, path + ": no token to read");
  const auto is_visible = [](char c) { return c >= 0x20 && c <= 0x7e; };
  if (!std::all_of(token.begin(), token.end(), is_visible)) {  // gRPC would end the process
    throw Error(Error::Kind::usage, path + ": no token, which is one line of ASCII");
  }
  return token;
}

std::shared_ptr<grpc::Channel> connect(const Address& address, const Options& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetMaxReceiveMessageSize(-1);
  // A host that hangs closes no connection: while a request is on its way, the server is asked
  // whether it is there. Triton takes it for abuse if that happens much more often.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive.after_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive.timeout_ms);
  // Its name in later releases.
  arguments.SetInt("grpc.http2.ping_timeout_ms", keepalive.timeout_ms);
  // The pool decides when to look at a server again, so the channel must not wait longer. The
  // least is also what connecting may take: a far or busy host takes seconds, and a request that
  // cannot be sent must not reach its deadline by that.
  const auto connecting = std::min<std::int64_t>(20000, options.timeout.count() / 2);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(connecting));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // No proxy reaches this host's own servers.
  if (is_loopback(address.target)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  auto credentials = grpc::InsecureChannelCredentials();
  if (address.tls) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs =
        options.ca.empty() ? host_authorities() : read_pem(options.ca, "certificates");
    if (!options.certificate.empty()) {
      tls.pem_cert_chain = read_pem(options.certificate, "certificate");
      tls.pem_private_key = read_pem(options.key, "private key");
    }
    credentials = grpc::SslCredentials(tls);
  }
  return grpc::CreateCustomChannel(address.target, credentials, arguments);
}

End meaning(const grpc::Status& status) {
  const std::string& said = status.error_message();
  if (is_above_rate(status)) return End::above_rate;
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return End::answered;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return End::deadline;
    case grpc::StatusCode::UNAVAILABLE:
      if (contains(said, "This protocol is restricted") || is_unusable(status)) return End::refused;
      return contains(said, "unknown model") ? End::no_model : End::away;
    default:
      break;
  }
  if (contains(said, "unknown model")) return End::no_model;
  const bool model_away = contains(said, "Stub process") || contains(said, "not at ready state") ||
                          contains(said, "is not ready");
  const bool connection_lost = contains(said, "RST_STREAM") || contains(said, "Stream removed") ||
                               contains(said, "Socket closed");
  return model_away || connection_lost ? End::away : End::refused;
}

std::string reason(const grpc::Status& status) {
  std::string text = status.error_message();
  text.erase(std::min(text.find("\n\nAt:"), text.size()));
  const std::string wrapped = "Failed to process the request(s) for model";
  const auto start = text.find(wrapped);
  const auto message = text.find(", message: ");
  if (start != std::string::npos && message != std::string::npos && message > start) {
    text.erase(0, message + 11);
  }
  for (const std::string name : {"EventError: ", "TritonModelException: "}) {
    if (text.rfind(name, 0) == 0) text.erase(0, name.size());
  }
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    line = "it does not answer like a Triton server";
  }
  if (is_unusable(status)) {
    line = "the certificates or the private key are damaged, or do not belong together";
  }
  const bool busy = is_above_rate(status) || contains(line, "Exceeds maximum queue size") ||
                    contains(line, "Request timeout expired");
  if (busy && !contains(line, "try again")) line += ": try again in 1 s";
  return line.empty() ? "gRPC status " + std::to_string(status.error_code()) : line;
}

}  // namespace numl
