#include "numl/client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#if __has_include(<grpcpp/impl/proto_utils.h>)
#include <grpcpp/impl/proto_utils.h>
#else  // gRPC 1.51 and before
#include <grpcpp/impl/codegen/proto_utils.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "channel.h"
#include "fallback.h"
#include "options.h"
#include "pool.h"
#include "registry.h"
#include "wire.h"

// The completion queue hands a request from one thread to another. TSan does not see how, as a
// distribution's gRPC is not built for it.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#define HAND_OVER(address) __tsan_release(address)
#define HANDED_OVER(address) __tsan_acquire(address)
#else
#define HAND_OVER(address) static_cast<void>(address)
#define HANDED_OVER(address) static_cast<void>(address)
#endif

namespace numl {
namespace {

using Stub = grpc::TemplatedGenericStub<wire::InferRequest, wire::InferResponse>;
using Reader = grpc::ClientAsyncResponseReader<wire::InferResponse>;

// How often waiting requests are looked at while a server is away.
constexpr std::chrono::milliseconds tick{20};

// An event on its way, with all its attempts.
struct Request {
  wire::InferRequest sent;
  std::vector<std::int32_t> plane_of_hit;
  Time deadline;
  std::promise<Labels> promise;
  std::string last_error;  // of the attempt before

  // Of the attempt under way.
  std::size_t server = 0;
  bool look = false;  // at a server that was away
  Time started;
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<Reader> reader;
  wire::InferResponse answer;
  grpc::Status status;
};
using Owned = std::unique_ptr<Request>;

struct Server {
  Address address;
  std::shared_ptr<grpc::Channel> channel;
  bool lacks_model = false;
};

std::string seconds(std::chrono::milliseconds time) {
  std::string text = std::to_string(static_cast<double>(time.count()) / 1000);
  text.erase(text.find_last_not_of('0') + 1);
  return (text.back() == '.' ? text + "0" : text) + " s";
}

}  // namespace

class Client::Impl {
 public:
  explicit Impl(Options options)
      : options_(checked(std::move(options))),
        budget_(options_.retry_budget),
        registry_(options_.servers_folder),
        local_(options_.fallback) {
    const std::string& folder = options_.servers_folder;
    auto servers = options_.servers;
    if (!folder.empty()) {
      const auto named = registry_.read(options_.timeout);
      if (!named) {
        throw Error(Error::Kind::unavailable,
                    folder + " cannot be read within " + seconds(options_.timeout));
      }
      servers = *named;
    }
    if (servers.empty() && !local_.configured()) {
      throw Error(Error::Kind::unavailable,
                  folder + " names no server (numlkit status shows why)");
    }
    for (const std::string& server : servers) add(connected(checked(server, options_)));
    if (local_.configured()) fallback_ = connected(Address::parse(options_.fallback.server));
    if (!options_.token_file.empty()) token();
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [this] { return under_way_ == 0 && next_.empty(); });
      queue_.Shutdown();
    }
    thread_.join();
  }

  std::future<Labels> submit(const Event& event) {
    Owned request = spare();
    write_request(request->sent, event, options_.model, options_.version);
    request->plane_of_hit = event.local_plane;
    auto future = request->promise.get_future();
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return next_.size() < options_.in_flight; });
    next_.push_back(std::move(request));
    look(lock);
    fill(lock);
    return future;
  }

  Statistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

  void end_fallback() {
    const std::lock_guard lock(mutex_);
    local_.end();
  }

 private:
  // A request that was answered, as its messages have their memory already, or a new one.
  Owned spare() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return std::make_unique<Request>();
    Owned request = std::move(spare_.back());
    spare_.pop_back();
    return request;
  }

  Server connected(const Address& address) const { return {address, connect(address, options_)}; }

  void add(Server server) {
    servers_.push_back(std::move(server));
    pool_.add();
  }

  // Who renews a token may empty its file first, or remove it: the one before is good until then.
  std::string token() {
    const std::lock_guard lock(token_mutex_);
    try {
      token_ = read_token(options_.token_file);
    } catch (const Error&) {
      if (token_.empty()) throw;
    }
    return token_;
  }

  // See which servers the folder names by now.
  void look(std::unique_lock<std::mutex>& lock) {
    const auto named = registry_.look(lock);
    if (!named) return;
    std::vector<std::size_t> there;
    for (const std::string& server : *named) {
      try {
        there.push_back(number_of(checked(server, options_)));
      } catch (const Error&) {  // without TLS, or its files cannot be read just now
      }
    }
    if (there.empty()) return;
    if (local_.started()) there.push_back(number_of(fallback_->address));
    pool_.use(there);
  }

  std::size_t number_of(const Address& address) {
    for (std::size_t i = 0; i < servers_.size(); ++i) {
      if (servers_[i].address.url() == address.url()) return i;
    }
    add(connected(address));
    return servers_.size() - 1;
  }

  // Send as many of the next requests as may be on their way.
  void fill(std::unique_lock<std::mutex>& lock) {
    while (!next_.empty() && under_way_ < options_.in_flight) {
      Owned request = std::move(next_.front());
      next_.pop_front();
      ++under_way_;
      request->deadline = Clock::now() + options_.timeout;
      send(std::move(request), lock);
    }
    // To be woken for each answer costs more than all else here.
    if (next_.size() <= options_.in_flight / 2) room_.notify_all();
  }

  // Send a request now, or let it wait for a server. Unlocked where time is spent.
  void send(Owned request, std::unique_lock<std::mutex>& lock) {
    const auto chosen = pool_.choose(Clock::now());
    if (!chosen) {
      waiting_.push_back(std::move(request));
      return;
    }
    request->server = *chosen;
    request->look = pool_.away(*chosen);
    request->started = Clock::now();
    pool_.sent(*chosen);
    const auto channel = servers_[*chosen].channel;
    const bool tls = servers_[*chosen].address.tls;
    lock.unlock();
    try {
      start(*request, channel, tls);
      request.release();  // the completion queue has it now
      lock.lock();
    } catch (const std::exception& error) {  // no memory
      lock.lock();
      pool_.ended(*chosen);
      fail(std::move(request), Error(Error::Kind::refused, error.what()));
    }
  }

  void start(Request& request, const std::shared_ptr<grpc::Channel>& channel, bool tls) {
    request.context = std::make_unique<grpc::ClientContext>();
    const auto left = request.deadline - request.started;
    request.context->set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::system_clock::duration>(left));
    if (tls && !options_.token_file.empty()) {
      request.context->AddMetadata("authorization", "Bearer " + token());
    }
    request.answer.Clear();
    Stub stub(channel);
    request.reader =
        stub.PrepareUnaryCall(request.context.get(), infer_method, request.sent, &queue_);
    Reader& reader = *request.reader;
    reader.StartCall();
    HAND_OVER(&request);
    reader.Finish(&request.answer, &request.status, &request);
  }

  // The thread that ends requests, until the queue is shut down.
  void run() {
    for (;;) {
      void* tag = nullptr;
      bool ok = false;
      std::unique_lock lock(mutex_);
      const bool waits = pool_.size() == 0 || pool_.any_away() || !waiting_.empty();
      lock.unlock();
      // Requests wait only while a server is away: otherwise nothing but an answer happens next.
      const auto until = waits ? std::chrono::system_clock::now() + tick
                               : std::chrono::system_clock::time_point::max();
      const auto next = queue_.AsyncNext(&tag, &ok, until);
      if (next == grpc::CompletionQueue::SHUTDOWN) return;
      if (next == grpc::CompletionQueue::GOT_EVENT) {
        HANDED_OVER(tag);
        end(Owned(static_cast<Request*>(tag)));
      }
      lock.lock();
      look_after_waiting(lock);
      fill(lock);
    }
  }

  // An attempt has ended.
  void end(Owned request) {
    const End what = meaning(request->status);
    if (what == End::answered) return answer(std::move(request));
    std::unique_lock lock(mutex_);
    Server& server = servers_[request->server];
    request->last_error = server.address.url() + ": " + reason(request->status);
    if (what == End::refused || what == End::deadline) {
      // A server, or a proxy before it, may have a shorter deadline of its own.
      const bool is_ours = what == End::deadline && Clock::now() >= request->deadline;
      const auto kind = what == End::refused ? Error::Kind::refused : Error::Kind::deadline;
      const Error error(kind, is_ours ? server.address.url() + ": no answer within " +
                                            seconds(options_.timeout)
                                      : request->last_error);
      pool_.ended(request->server);
      return fail(std::move(request), error);
    }
    last_error_ = request->last_error;
    pool_.lost(request->server, request->started, Clock::now());
    if (what == End::no_model && statistics_.answered == 0) {
      server.lacks_model = true;
      bool nowhere = true;
      for (std::size_t i = 0; i < servers_.size(); ++i) {
        nowhere = nowhere && (servers_[i].lacks_model || !pool_.there(i));
      }
      if (nowhere) {
        const std::string cause = server.address.url() + " serves no model " + options_.model;
        return fail(std::move(request), Error(Error::Kind::refused, cause));
      }
    }
    // Who waits at a front door loads no server.
    if (what != End::above_rate && !request->look && !budget_.take()) {
      const std::string cause = request->last_error + "; the budget of retries is spent";
      return fail(std::move(request), Error(Error::Kind::unavailable, cause));
    }
    ++statistics_.retries;
    send(std::move(request), lock);
  }

  void answer(Owned request) {
    const auto latency = Clock::now() - request->started;
    Labels labels;
    std::string wrong;
    try {
      labels = labels_of(request->answer, request->plane_of_hit);
      labels.latency = latency;
    } catch (const std::exception& error) {  // it does not fit, or no memory
      wrong = error.what();
    }
    request->reader.reset();
    request->context.reset();
    std::unique_lock lock(mutex_);
    pool_.answered(request->server);
    all_away_since_.reset();
    if (!wrong.empty()) {
      const std::string url = servers_[request->server].address.url();
      return fail(std::move(request), Error(Error::Kind::refused, url + ": " + wrong));
    }
    budget_.answered();
    ++statistics_.answered;
    finished();
    std::promise<Labels> promise = std::exchange(request->promise, {});
    request->last_error.clear();
    spare_.push_back(std::move(request));
    lock.unlock();
    promise.set_value(std::move(labels));
  }

  void fail(Owned request, const Error& error) {
    ++statistics_.failed;
    finished();
    request->promise.set_exception(std::make_exception_ptr(error));
  }

  void finished() {
    --under_way_;
    if (under_way_ == 0 && next_.empty()) room_.notify_all();  // for the destructor
  }

  void look_after_waiting(std::unique_lock<std::mutex>& lock) {
    if (waiting_.empty()) return;
    look(lock);
    const Time now = Clock::now();
    if (pool_.all_away()) start_fallback(now);
    const std::string lost = local_.failure();
    const bool has_others = !options_.servers.empty() || !options_.servers_folder.empty();
    std::deque<Owned> waiting;
    waiting.swap(waiting_);
    while (!waiting.empty()) {
      Owned request = std::move(waiting.front());
      waiting.pop_front();
      if (now >= request->deadline) {
        std::string known = request->last_error.empty() ? last_error_ : request->last_error;
        if (known.empty()) known = "the fallback server has not started yet";
        if (!lost.empty()) known += "; " + lost;
        const std::string cause = "unreachable for " + seconds(options_.timeout) + ": " + known;
        fail(std::move(request), Error(Error::Kind::unavailable, cause));
      } else if (!lost.empty() && !has_others && pool_.all_away()) {
        fail(std::move(request), Error(Error::Kind::unavailable, lost));
      } else {
        send(std::move(request), lock);
      }
    }
  }

  void start_fallback(Time now) {
    if (!all_away_since_) all_away_since_ = now;
    if (!local_.configured() || local_.started()) return;
    if (pool_.size() > 0 && now - *all_away_since_ < options_.fallback.after) return;
    local_.start();
    statistics_.fallback_started = true;
    add(*fallback_);
  }

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  Pool pool_;
  Budget budget_;
  Registry registry_;
  std::vector<Server> servers_;
  std::vector<Owned> spare_;
  std::deque<Owned> next_;     // to be sent when fewer are on their way
  std::deque<Owned> waiting_;  // for a server
  std::size_t under_way_ = 0;
  std::optional<Time> all_away_since_;
  std::string last_error_;  // of any server that was away
  std::optional<Server> fallback_;
  std::mutex token_mutex_;
  std::string token_;
  Statistics statistics_;
  LocalServer local_;
  grpc::CompletionQueue queue_;
  std::thread thread_;
};

Client::Client(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;
std::future<Labels> Client::submit(const Event& event) { return impl_->submit(event); }
Statistics Client::statistics() const { return impl_->statistics(); }
void Client::end_fallback() { impl_->end_fallback(); }

}  // namespace numl
