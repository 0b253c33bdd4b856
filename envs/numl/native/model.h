// A network with everything it owns.
#pragma once

#include <pthread.h>

#include "library.h"
#include "network.h"

struct numl_network {
  numl::Network network;
  numl_clustering clustering;
  numl::Run* run;
  int32_t level;
  numl::Arena weights;  // and all else that the network is made of
  numl::Arena events;   // one at a time
  pthread_mutex_t busy;
};

// Builds a card's network in its arena. Fails if a weight is missing.
void build_network(const numl_card& card, numl_network* to);
