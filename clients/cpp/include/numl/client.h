// NuGraph on a Triton server, from C++: an event's hits and spacepoints in, labels out.
//
// One header; needs no framework. docs/cpp.md has an example.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace numl {

constexpr std::size_t planes = 3;  // u, v, y

// One event, or one slice of it. All columns of a table have one length; both may be empty.
struct Event {
  std::vector<std::int32_t> hit_id;
  std::vector<std::int32_t> local_plane;  // 0 u, 1 v, 2 y
  std::vector<std::int32_t> local_wire;   // wire number within the plane
  std::vector<float> local_time;          // ticks
  std::vector<float> integral;            // ADC counts x ticks
  std::vector<float> rms;                 // ticks

  std::vector<std::int32_t> spacepoint_id;
  // The hit_id of the spacepoint's hit in each plane; -1 where it has none.
  std::array<std::vector<std::int32_t>, planes> spacepoint_hit_id;
};

// A model's answer. Rows are the event's hits, in the event's order.
struct Labels {
  std::size_t classes = 0;
  std::vector<float> semantic;       // [hits * classes], as served: probabilities or raw scores
  std::vector<float> filter;         // [hits], 0 to 1; below 0.5 counts as noise
  std::vector<std::int32_t> label;   // [hits], the class of the largest number
  std::vector<float> event_scores;   // [event classes]; empty for nugraph2
  std::vector<float> vertex;         // x, y, z in cm; empty for nugraph2
  std::chrono::nanoseconds latency{};  // of the attempt that was answered
};

// Why there is no answer. what() is one line, in the server's words where it gave some.
class Error : public std::runtime_error {
 public:
  enum class Kind {
    usage,        // the event or the options are wrong; nothing was sent
    refused,      // a server will not answer this request; the next one may be answered
    unavailable,  // no server could be reached, or the retry budget is spent
    deadline,     // no answer in time
  };
  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

// A server of one's own that is started when the others have been away for a while, and ended
// with the client. Commands are run by /bin/sh. Its address must be known beforehand.
struct Fallback {
  std::string start;   // "numlkit up --name job --ports 18000,18001,18002"; empty: no fallback
  std::string stop;    // "numlkit down --name job"; empty: SIGTERM to what `start` still runs
  std::string server;  // "127.0.0.1:18001"
  std::chrono::milliseconds after{5000};  // how long no other server has answered
};

struct Options {
  // "host:port" or "grpc://host:port" without TLS, "grpcs://host[:port]" with it.
  std::vector<std::string> servers;
  // In their place: the folder that names the servers of `numlkit up --engine slurm`, followed as
  // they come and go. One that names none, or cannot be read within the timeout, throws
  // Error::Kind::unavailable.
  std::string servers_folder;
  std::string model = "nugraph3";
  std::string version;  // empty: the newest

  // PEM files, read when the client is made. A client certificate is for mutual TLS.
  std::string ca;  // empty: the host's own authorities
  std::string certificate;
  std::string key;
  // A file with a bearer token, read for each request, so that it can be renewed: while it cannot
  // be read, the token before is sent. Needs TLS.
  std::string token_file;

  std::chrono::milliseconds timeout{60000};  // for an event, with all its attempts and pauses
  std::size_t in_flight = 8;                 // requests at once, over all servers
  // A retry takes one from the budget, ten answers put one back: an overloaded service is not
  // loaded further. Looking whether a server has returned is free.
  double retry_budget = 100;
  Fallback fallback;
};

struct Statistics {
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  std::uint64_t retries = 0;
  bool fallback_started = false;
};

// A connection to one or several servers. All members may be called by several threads.
//
// A request goes to the server that has the fewest of this client's. One that cannot be reached,
// or that says it does not serve now, is left alone for a while, and its requests go to others.
class Client {
 public:
  explicit Client(Options options);  // connects when first asked; throws Error
  ~Client();                         // waits for what was submitted, ends the fallback server
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Send an event as soon as fewer than `in_flight` are on their way; wait while as many are next.
  // The event is not kept. The future, or the call itself for Error::Kind::usage, throws Error.
  std::future<Labels> submit(const Event& event);
  Labels label(const Event& event) { return submit(event).get(); }
  Statistics statistics() const;
  // End the fallback server now, for good: for a program that is about to be ended by a signal,
  // where no destructor runs. Not for the handler itself.
  void end_fallback();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace numl
