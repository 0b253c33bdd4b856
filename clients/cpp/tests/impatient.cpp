// numl-label that notices in half a second, and not in half a minute, that a server hangs.
#include "channel.h"

namespace {

const struct Impatient {
  Impatient() { numl::keepalive = {250, 250}; }
} impatient;

}  // namespace
