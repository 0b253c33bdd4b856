#include "arguments.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <utility>

namespace numl::program {
namespace {

constexpr const char* help = R"(usage: numl-label [options] FILE...

Label the events of pynuml HDF5 files by NuGraph on Triton servers. Without --out, prints a line
for each hit: run, subrun, event, hit_id, plane, label, its number and the filter's, tab separated.

  --url ADDRESS        [grpc[s]://]host[:port]; several: requests go to the one that has the fewest
  --servers FOLDER     the folder that names the servers of numlkit up --engine slurm
  --model NAME         default: nugraph3
  --ca FILE            authorities to trust (PEM; default: the host's)
  --cert FILE          client certificate (PEM), with
  --key FILE           its private key
  --token-file FILE    bearer token, sent with each request
  --timeout SECONDS    for an event, with all attempts (default: 60)
  --in-flight N        requests at once (default: 8)
  --fallback COMMAND   starts a server here if the others have not answered for 5 s, or if none is
                       named, as in --fallback 'numlkit up --name job --ports 18000,18001,18002'
                       --fallback-url 127.0.0.1:18001 --fallback-stop 'numlkit down --name job'
  --fallback-url ADDRESS
  --fallback-stop COMMAND
                       default: SIGTERM to what --fallback runs
  --out FILE           write an HDF5 file, as numlkit infer does
  --list               print the events and their numbers of hits and spacepoints; ask no server
  --repeat N           send each event N times, as a test of speed
  --json               print a summary as JSON instead of hits
  --quiet              print no hits
)";

double number(const std::string& name, const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= least && value <= most)) {
    throw Error(Error::Kind::usage, name + " " + text + ": not a number it takes");
  }
  return value;
}

// What a results file would destroy is refused before anything is sent.
void check_out(const std::string& out, const std::vector<std::string>& files) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::exists(out, failed)) return;
  if (!fs::is_regular_file(out, failed)) {
    throw Error(Error::Kind::usage, "--out " + out + " is no file: name one that may be replaced");
  }
  for (const std::string& file : files) {
    if (!fs::equivalent(out, file, failed)) continue;
    throw Error(Error::Kind::usage, "--out " + out + " is also a file to read: name another one");
  }
}

}  // namespace

Arguments parse(int count, char** words) {
  Arguments parsed;
  Options& options = parsed.options;
  const auto whole = [](const std::string& name, const std::string& text) {
    const double value = number(name, text, 1, 1e6);
    if (value != std::floor(value)) {
      throw Error(Error::Kind::usage, name + " " + text + ": not a whole number");
    }
    return static_cast<std::size_t>(value);
  };
  using Set = std::function<void(const std::string&, const std::string&)>;
  const auto into = [](std::string& field) {
    return Set([&field](const std::string&, const std::string& text) { field = text; });
  };
  const std::map<std::string, Set> valued = {
      {"--url", [&](auto&, auto& text) { options.servers.push_back(text); }},
      {"--servers", into(options.servers_folder)},
      {"--model", into(options.model)},
      {"--ca", into(options.ca)},
      {"--cert", into(options.certificate)},
      {"--key", into(options.key)},
      {"--token-file", into(options.token_file)},
      {"--timeout",
       [&](auto& name, auto& text) {
         const double ms = 1e3 * number(name, text, 1e-3, 1e6);
         options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(ms));
       }},
      {"--in-flight", [&](auto& name, auto& text) { options.in_flight = whole(name, text); }},
      {"--fallback", into(options.fallback.start)},
      {"--fallback-url", into(options.fallback.server)},
      {"--fallback-stop", into(options.fallback.stop)},
      {"--out", into(parsed.out)},
      {"--repeat", [&](auto& name, auto& text) { parsed.repeat = whole(name, text); }},
  };
  const std::map<std::string, bool*> flags = {
      {"--list", &parsed.list}, {"--quiet", &parsed.quiet}, {"--json", &parsed.json}};
  for (int i = 1; i < count; ++i) {
    std::string word = words[i];
    if (word == "--help" || word == "-h") {
      std::cout << help;
      std::exit(0);
    }
    if (word.empty() || word[0] != '-') {
      parsed.files.push_back(word);
      continue;
    }
    if (const auto flag = flags.find(word); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto found = valued.find(name);
    if (found == valued.end()) throw Error(Error::Kind::usage, name + ": no such option (--help)");
    if (equals == std::string::npos && i + 1 == count) {
      throw Error(Error::Kind::usage, name + " needs a value (--help)");
    }
    found->second(name, equals == std::string::npos ? words[++i] : word.substr(equals + 1));
  }
  if (parsed.files.empty()) throw Error(Error::Kind::usage, "no file is given (--help)");
  if (!parsed.out.empty()) check_out(parsed.out, parsed.files);
  return parsed;
}

}  // namespace numl::program
