#include "registry.h"

#include <fcntl.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "channel.h"
#include "numl_registry.pb.h"

namespace numl {
namespace {

constexpr double fresh_s = 180;
constexpr std::size_t most_bytes = 1024;
constexpr std::chrono::seconds look_pause{1};
// How long a reader is waited for: a hung file system's answer is taken when it comes.
constexpr std::chrono::milliseconds look_patience{200};

bool is_fresh(const struct stat& status) {
  return std::difftime(std::time(nullptr), status.st_mtime) <= fresh_s;
}

// The text of an entry, or nothing if this is none.
std::string entry_text(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // a FIFO would block
  if (file < 0) return {};
  std::string text;
  struct stat status {};
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && is_fresh(status)) {
    text.resize(most_bytes + 1);
    const auto got = read(file, text.data(), text.size());
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  }
  close(file);
  return text.size() > most_bytes ? std::string() : text;
}

// The value of `url` in a JSON object; empty if there is none, or if it is no string.
std::string url_of(const std::string& json) {
  namespace protobuf = google::protobuf;
  const std::string domain = "type.googleapis.com";
  const protobuf::Descriptor& type = *protobuf::Struct::descriptor();
  const std::unique_ptr<protobuf::util::TypeResolver> types(
      protobuf::util::NewTypeResolverForDescriptorPool(domain, type.file()->pool()));
  std::string bytes;
  registry::Object object;
  const auto read = protobuf::util::JsonToBinaryString(
      types.get(), domain + "/" + std::string(type.full_name()), json, &bytes);
  if (!read.ok() || !object.ParseFromString(bytes)) return {};
  for (const registry::Member& member : object.members()) {
    if (member.key() == "url") return member.value().string_value();
  }
  return {};
}

bool is_made_of(const std::string& text, const char* characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string::npos;
}

// Not by <regex>: its headers warn when they are compiled for ASan by gcc 12.
bool is_address(const std::string& url) {
  const bool tls = url.rfind("grpcs://", 0) == 0;
  if (!tls && url.rfind("grpc://", 0) != 0) return false;
  const std::string rest = url.substr(tls ? 8 : 7);
  const auto colon = rest.rfind(':');
  if (colon == std::string::npos) return false;
  const std::string host = rest.substr(0, colon), port = rest.substr(colon + 1);
  const bool is_ipv6 = host.size() > 2 && host.front() == '[' && host.back() == ']' &&
                       is_made_of(host.substr(1, host.size() - 2), "0123456789ABCDEFabcdef:.");
  const bool is_name = is_made_of(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                        "0123456789._-");
  return (is_ipv6 || is_name) && is_port(port);
}

}  // namespace

Urls servers_in(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code failed;
  const std::string ending = ".json";
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (name.size() >= ending.size() &&
        name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
      paths.push_back(at->path());
    }
  }
  std::sort(paths.begin(), paths.end());
  Urls found;
  for (const auto& path : paths) {
    const std::string url = url_of(entry_text(path));
    const bool known = std::find(found.begin(), found.end(), url) != found.end();
    if (!known && is_address(url)) found.push_back(url);
  }
  return found;
}

Registry::Registry(std::string folder)
    : folder_(std::move(folder)), next_look_(std::chrono::steady_clock::now() + look_pause) {}

// The library may be unloaded next: only a reader that hangs is left behind.
Registry::~Registry() {
  if (reading_.valid()) reading_.wait_for(look_patience);
}

std::optional<Urls> Registry::read(std::chrono::milliseconds patience) {
  begin();
  reading_.wait_for(patience);
  return take();
}

std::optional<Urls> Registry::look(std::unique_lock<std::mutex>& lock) {
  if (folder_.empty()) return {};
  if (!reading_.valid()) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return {};
    next_look_ = now + look_pause;
    begin();
    const auto soon = reading_;
    lock.unlock();
    soon.wait_for(look_patience);
    lock.lock();
  }
  return take();
}

void Registry::begin() {
  const auto found = std::make_shared<std::promise<Urls>>();
  reading_ = found->get_future().share();
  try {
    std::thread([found, folder = folder_] { found->set_value(servers_in(folder)); }).detach();
  } catch (const std::system_error&) {  // no thread now: nothing new
    found->set_value({});
  }
}

std::optional<Urls> Registry::take() {
  const bool read = reading_.valid() &&
                    reading_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (!read) return {};
  return std::exchange(reading_, {}).get();
}

}  // namespace numl
