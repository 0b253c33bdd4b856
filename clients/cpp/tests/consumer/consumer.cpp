#include <numl/client.h>

#include <cstdio>

int main() {
  numl::Options options;
  options.servers = {"grpcs://triton.example.org"};
  numl::Client client(options);
  std::printf("%llu\n", static_cast<unsigned long long>(client.statistics().answered));
}
