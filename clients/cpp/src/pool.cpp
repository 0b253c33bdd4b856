#include "pool.h"

#include <algorithm>

namespace numl {
namespace {

constexpr std::chrono::milliseconds shortest{250};
constexpr std::chrono::milliseconds longest{5000};
constexpr double refund = 0.1;

}  // namespace

void Pool::use(const std::vector<std::size_t>& there) {
  for (Server& server : servers_) server.there = false;
  for (const std::size_t at : there) servers_[at].there = true;
  for (Server& server : servers_) {
    if (!server.there) server.failures = 0;
  }
}

std::optional<std::size_t> Pool::choose(Time now) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    const std::size_t at = (turn_ + i) % servers_.size();
    const Server& server = servers_[at];
    if (!server.there) continue;
    if (server.failures > 0 && (now < server.look || server.outstanding > 0)) continue;
    // A look at one that may have returned comes first, or it would never be asked again.
    if (server.failures > 0) {
      best = at;
      break;
    }
    if (!best || server.outstanding < servers_[*best].outstanding) best = at;
  }
  if (best) turn_ = (*best + 1) % servers_.size();
  return best;
}

void Pool::answered(std::size_t server) {
  --servers_[server].outstanding;
  servers_[server].failures = 0;
}

void Pool::lost(std::size_t at, Time sent, Time now) {
  Server& server = servers_[at];
  --server.outstanding;
  if (!server.there) return;
  // Those that were on their way when it was noticed say nothing new.
  if (server.failures > 0 && sent <= server.noticed) return;
  const auto pause = std::min(shortest * (1U << std::min(server.failures, 5U)), longest);
  const double jitter = std::uniform_real_distribution<>(0.8, 1.2)(random_);
  ++server.failures;
  server.noticed = now;
  server.look = now + std::chrono::duration_cast<Clock::duration>(pause * jitter);
}

bool Pool::any_away() const {
  return std::any_of(servers_.begin(), servers_.end(), [](const Server& s) { return s.failures > 0; });
}

bool Pool::all_away() const {
  return std::all_of(servers_.begin(), servers_.end(),
                     [](const Server& s) { return !s.there || s.failures > 0; });
}

bool Budget::take() {
  if (left_ < 1) return false;
  left_ -= 1;
  return true;
}

void Budget::answered() { left_ = std::min(most_, left_ + refund); }

}  // namespace numl
