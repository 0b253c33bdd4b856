// Which server a request goes to. Knows no network and no clock: times are passed in.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

namespace numl {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

class Pool {
 public:
  explicit Pool(std::size_t servers = 0) : servers_(servers) {}

  void add() { servers_.emplace_back(); }
  // Send requests to these from now on. The others have left, and are forgotten: one that returns
  // is as new. What is on its way to them is waited for.
  void use(const std::vector<std::size_t>& there);
  bool there(std::size_t server) const { return servers_[server].there; }
  std::size_t size() const { return servers_.size(); }

  // The server with the fewest requests on their way, in turn where several have as few. One that
  // was away is looked at by a single request when its pause is over. None: all are away.
  std::optional<std::size_t> choose(Time now);
  bool away(std::size_t server) const { return servers_[server].failures > 0; }

  void sent(std::size_t server) { ++servers_[server].outstanding; }
  void answered(std::size_t server);
  // A request that was sent at `sent` found the server away. The pauses double, from a quarter of
  // a second to five seconds, and differ between clients.
  void lost(std::size_t server, Time sent, Time now);
  // Any other end of a request: the server's state is as before.
  void ended(std::size_t server) { --servers_[server].outstanding; }

  bool any_away() const;
  bool all_away() const;

 private:
  struct Server {
    bool there = true;
    std::size_t outstanding = 0;
    unsigned failures = 0;  // 0 unless it is there
    Time noticed{};  // when it was last found away
    Time look{};     // when it may be asked again
  };
  std::vector<Server> servers_;
  std::size_t turn_ = 0;
  std::minstd_rand random_{std::random_device{}()};
};

// Retries that an overloaded service may be asked for.
class Budget {
 public:
  explicit Budget(double most) : most_(most), left_(most) {}
  bool take();
  void answered();

 private:
  double most_;
  double left_;
};

}  // namespace numl
