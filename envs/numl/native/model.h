// A network with all that belongs to it.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "library.h"
#include "network.h"

struct numl_network {
  numl::Network network;
  std::deque<std::vector<float>> numbers;
  std::deque<std::vector<numl::Layer>> layers;
  std::deque<std::vector<numl::Gate>> gates;
  std::vector<numl::Head> heads;
  numl_clustering clustering;
  numl::Run* run;
  int32_t level;
  numl::Arena arena;
  std::mutex busy;  // the arena is for one event at a time
};

// Puts the network of a card together. Raises std::runtime_error if a weight is missing.
void build_network(const numl_card& card, numl_network* to);
