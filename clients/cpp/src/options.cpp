#include "options.h"

#include <algorithm>
#include <chrono>

namespace numl {
namespace {

// Clocks count nanoseconds, which overflow for the longest time in milliseconds.
constexpr std::chrono::hours longest_time{24 * 365};

}  // namespace

Options checked(Options options) {
  const auto refuse = [](const std::string& why) { throw Error(Error::Kind::usage, why); };
  const bool followed = !options.servers_folder.empty();
  if (options.servers.empty() && !followed && options.fallback.start.empty()) {
    refuse("no server is given");
  }
  if (followed && !options.servers.empty()) refuse("give servers, or a folder that names them");
  if (options.model.empty()) refuse("no model is given");
  if (options.in_flight < 1) refuse("in_flight must be at least 1");
  if (options.timeout.count() <= 0) refuse("the timeout must be positive");
  if (options.certificate.empty() != options.key.empty()) {
    refuse("a client certificate and its private key go together");
  }
  if (options.fallback.start.empty() != options.fallback.server.empty()) {
    refuse("a fallback server needs both a command and an address");
  }
  for (auto* time : {&options.timeout, &options.fallback.after}) {
    *time = std::min<std::chrono::milliseconds>(*time, longest_time);
  }
  return options;
}

Address checked(const std::string& server, const Options& options) {
  const Address address = Address::parse(server);
  const bool secrets =
      !options.ca.empty() || !options.certificate.empty() || !options.token_file.empty();
  if (secrets && !address.tls) {
    throw Error(Error::Kind::usage,
                server + " is without TLS, but certificates and tokens are for it: grpcs://");
  }
  return address;
}

}  // namespace numl
