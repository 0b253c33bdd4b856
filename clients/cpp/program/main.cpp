// numl-label: pynuml HDF5 in, labels out.
#include <signal.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "arguments.h"
#include "event_file.h"
#include "numl/client.h"
#include "results_file.h"
#include "signals.h"

namespace {

using namespace numl;
using namespace numl::program;
using Clock = std::chrono::steady_clock;

std::string written(const EventId& id) {
  return std::to_string(id[0]) + "\t" + std::to_string(id[1]) + "\t" + std::to_string(id[2]);
}

void complain(const std::string& line) { std::fprintf(stderr, "numl-label: %s\n", line.c_str()); }

struct NotPrinted {
  bool nobody_reads;
};

// Throws NotPrinted for what printf returns if it fails.
void printed(int count) {
  if (count < 0) throw NotPrinted{errno == EPIPE};
}

struct Sent {
  EventId id;
  std::shared_ptr<const Event> event;
  std::future<Labels> labels;

  bool is_over() const {
    return labels.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
};

class Run {
 public:
  explicit Run(const Arguments& arguments) : arguments_(arguments), client_(arguments.options) {
    if (!arguments.out.empty()) results_.emplace(arguments.out, arguments.options.model);
    on_signal_.emplace([this] {
      if (results_) results_->discard();
      client_.end_fallback();
    });
  }
  // Here, where a signal does not yet end the program at once.
  ~Run() {
    client_.end_fallback();
    if (results_) results_->discard();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns false if events were not answered.
  bool all() {
    const auto started = Clock::now();
    std::exception_ptr lost;
    try {
      for (const std::string& path : arguments_.files) file(path);
      while (!sent_.empty()) take();
    } catch (const Error&) {
      lost = std::current_exception();
    }
    const std::chrono::duration<double> took = Clock::now() - started;
    // An earlier file is not replaced by one in which nothing is answered.
    if (results_ && (answered_ > 0 || failed_ == 0)) results_->finish(failed_ == 0);
    if (arguments_.json) summary(took.count());
    if (lost) std::rethrow_exception(lost);
    return failed_ == 0;
  }

 private:
  void file(const std::string& path) {
    std::optional<EventFile> events;
    try {
      events.emplace(path);
    } catch (const FileError& error) {
      return fail(error.what());
    }
    for (std::size_t i = 0; i < events->ids().size(); ++i) {
      const EventId id = events->ids()[i];
      std::shared_ptr<const Event> event;
      try {
        event = std::make_shared<Event>(events->read(i));
      } catch (const FileError& error) {
        fail("event " + written(id) + ": " + error.what());
        continue;
      }
      for (std::size_t n = 0; n < arguments_.repeat; ++n) send(path, id, event);
    }
  }

  void send(const std::string& path, const EventId& id, const std::shared_ptr<const Event>& event) {
    try {
      sent_.push_back({id, event, client_.submit(*event)});
    } catch (const Error& error) {
      fail(path + ": event " + written(id) + ": " + error.what());
    }
    // The client holds twice as many as are in flight. To wait for each of them would cost more.
    const std::size_t most = 4 * arguments_.options.in_flight;
    while (!sent_.empty() && (sent_.size() >= most || sent_.front().is_over())) take();
  }

  void take() {
    Sent first = std::move(sent_.front());
    sent_.pop_front();
    try {
      const Labels labels = first.labels.get();
      lost_ = 0;
      if (results_) results_->add(first.id, *first.event, labels);
      ++answered_;
      latency_ += labels.latency;
      if (!results_ && !arguments_.quiet && !arguments_.json) print(first, labels);
    } catch (const Error& error) {
      ++failed_;
      lost_ = error.kind() == Error::Kind::unavailable ? lost_ + 1 : 0;
      if (lost_ > 1) throw;  // nothing is left to ask
      complain("event " + written(first.id) + ": " + error.what());
    }
  }

  void print(const Sent& sent, const Labels& labels) {
    const std::string id = written(sent.id);
    for (std::size_t hit = 0; hit < labels.label.size(); ++hit) {
      const auto best = hit * labels.classes + static_cast<std::size_t>(labels.label[hit]);
      printed(std::printf("%s\t%d\t%d\t%d\t%.9g\t%.9g\n", id.c_str(), sent.event->hit_id[hit],
                          sent.event->local_plane[hit], labels.label[hit],
                          static_cast<double>(labels.semantic[best]),
                          static_cast<double>(labels.filter[hit])));
    }
  }

  void summary(double seconds) {
    const Statistics told = client_.statistics();
    const double latency = std::chrono::duration<double, std::milli>(latency_).count();
    std::printf("{\"ok\": %s, \"events\": %zu, \"failed\": %zu, \"retries\": %llu, "
                "\"fallback_started\": %s, \"seconds\": %.6f, \"mean_latency_ms\": %.4f}\n",
                failed_ == 0 ? "true" : "false", answered_, failed_,
                static_cast<unsigned long long>(told.retries),
                told.fallback_started ? "true" : "false", seconds,
                answered_ == 0 ? 0.0 : latency / static_cast<double>(answered_));
  }

  void fail(const std::string& line) {
    ++failed_;
    complain(line);
  }

  const Arguments& arguments_;
  std::optional<ResultsFile> results_;
  std::deque<Sent> sent_;
  std::size_t answered_ = 0;
  std::size_t failed_ = 0;
  int lost_ = 0;
  std::chrono::nanoseconds latency_{};
  Client client_;
  std::optional<TidyOnSignal> on_signal_;
};

bool list(const Arguments& arguments) {
  for (const std::string& path : arguments.files) {
    const EventFile events(path);
    for (std::size_t i = 0; i < events.ids().size(); ++i) {
      const Event event = events.read(i);
      printed(std::printf("%s\t%zu\t%zu\n", written(events.ids()[i]).c_str(),
                          event.hit_id.size(), event.spacepoint_id.size()));
    }
  }
  return true;
}

}  // namespace

int main(int count, char** words) {
  // Read by HDF5: many experiments' files lie on file systems without locks.
  setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
  setenv("GRPC_VERBOSITY", "NONE", 0);  // an error is said once, by us
  signal(SIGPIPE, SIG_IGN);
  keep_quiet();
  try {
    const Arguments arguments = parse(count, words);
    const bool ok = arguments.list ? list(arguments) : Run(arguments).all();
    printed(std::fflush(stdout));
    return ok ? 0 : 1;
  } catch (const NotPrinted& failure) {
    if (failure.nobody_reads) return 0;  // | head has what it wanted
    complain("what was to be printed cannot be written");
  } catch (const Error& error) {
    complain(error.what());
    return error.kind() == Error::Kind::usage ? 2 : 1;
  } catch (const std::bad_alloc&) {
    complain("not enough memory");
  } catch (const std::exception& error) {
    complain(error.what());
  }
  return 1;
}
