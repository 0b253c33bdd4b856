// What needs neither a server nor a file. The program is tested in tests/cpp, which also starts
// this with a folder, to see which servers it names.
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "channel.h"
#include "pool.h"
#include "registry.h"
#include "wire.h"

namespace {

using namespace numl;
using namespace std::chrono_literals;

int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "not so: %s\n", what);
}

bool refuses(const std::function<void()>& call, Error::Kind kind, const std::string& words) {
  try {
    call();
  } catch (const Error& error) {
    if (error.kind() == kind && std::strstr(error.what(), words.c_str()) != nullptr) return true;
    std::fprintf(stderr, "instead: %s\n", error.what());
  }
  return false;
}

Event event_of(std::size_t hits) {
  Event event;
  for (auto* column : {&event.hit_id, &event.local_plane, &event.local_wire}) column->resize(hits);
  for (auto* column : {&event.local_time, &event.integral, &event.rms}) column->resize(hits);
  return event;
}

wire::InferRequest request_of(const Event& event) {
  wire::InferRequest request;
  write_request(request, event, "m", "");
  return request;
}

void output(wire::InferResponse& answer, const std::string& name,
            const std::vector<std::int64_t>& shape, const std::vector<float>& values) {
  wire::Tensor& tensor = *answer.add_outputs();
  tensor.set_name(name);
  tensor.set_datatype("FP32");
  for (const auto size : shape) tensor.add_shape(size);
  answer.add_raw_output_contents(values.data(), values.size() * sizeof(float));
}

// Hits of planes y, u, y with two classes.
wire::InferResponse right_answer() {
  wire::InferResponse answer;
  output(answer, "x_semantic_u", {1, 2}, {3, 4});
  output(answer, "x_semantic_v", {0, 2}, {});
  output(answer, "x_semantic_y", {2, 2}, {2, 1, 5, 6});
  output(answer, "x_filter_u", {1}, {0.5F});
  output(answer, "x_filter_v", {0}, {});
  output(answer, "x_filter_y", {2}, {0.1F, 0.2F});
  return answer;
}

void a_request_goes_to_the_server_with_the_fewest() {
  Pool pool(3);
  const Time now{};
  for (std::size_t i = 0; i < 3; ++i) pool.sent(*pool.choose(now));
  pool.answered(1);
  check(pool.choose(now) == std::size_t{1}, "the idle server is chosen");
}

void a_lost_server_is_left_alone_and_then_looked_at_by_one_request() {
  Pool pool(1);
  const Time now = Time{} + 1h;
  for (int i = 0; i < 8; ++i) pool.sent(0);
  for (int i = 0; i < 8; ++i) pool.lost(0, now, now + 1ms);
  check(!pool.choose(now + 100ms), "it is not asked at once");
  check(pool.choose(now + 400ms) == std::size_t{0}, "eight losses at once are one");
  pool.sent(0);
  check(!pool.choose(now + 400ms), "one looks, the others wait");
  pool.lost(0, now + 400ms, now + 400ms);
  check(!pool.choose(now + 700ms), "the pauses become longer");
  check(pool.choose(now + 1100ms).has_value(), "but not for ever");
  pool.sent(0);
  pool.answered(0);
  check(!pool.any_away(), "an answer brings it back");
}

void a_server_that_has_left_gets_no_requests_and_is_as_new_when_it_returns() {
  Pool pool(2);
  const Time now = Time{} + 1h;
  pool.sent(0);
  pool.sent(0);
  pool.lost(0, now, now + 1ms);
  pool.use({1});
  check(!pool.any_away(), "what has left is not away");
  for (int i = 0; i < 3; ++i) {
    check(pool.choose(now + 1h) == std::size_t{1}, "the other gets its requests");
    pool.sent(1);
  }
  pool.lost(0, now, now + 2ms);
  pool.use({0, 1});
  check(pool.choose(now + 3ms) == std::size_t{0}, "it is asked at once");
  pool.lost(1, now, now + 3ms);
  pool.use({1});
  check(pool.all_away(), "nobody is left to ask");
}

void pauses_do_not_grow_beyond_seconds() {
  Pool pool(1);
  Time now = Time{} + 1h;
  for (int i = 0; i < 100; ++i) {
    pool.sent(0);
    pool.lost(0, now, now);
    now += 6001ms;
    check(pool.choose(now).has_value(), "a server is asked again within six seconds");
  }
}

void a_budget_is_spent_and_refilled_by_answers() {
  Budget budget(2);
  check(budget.take() && budget.take() && !budget.take(), "two retries");
  for (int i = 0; i < 11; ++i) budget.answered();
  check(budget.take() && !budget.take(), "ten answers are worth one");
}

void what_no_server_takes_is_not_sent() {
  Event event = event_of(3);
  event.rms.pop_back();
  check(refuses([&] { request_of(event); }, Error::Kind::usage,
                "hit_table_rms has 2 rows"), "a short column is named");
  event = event_of(2);
  event.local_plane[1] = 3;
  check(refuses([&] { request_of(event); }, Error::Kind::usage,
                "hit_table_local_plane: row 1 is 3, not 0, 1 or 2"), "a plane that is none");
  event = event_of(0);
  event.hit_id.resize(90'000'000);
  check(refuses([&] { request_of(event); }, Error::Kind::usage, "exceed the 2 GiB"),
        "an event that is too long");
  event = event_of(0);
  check(request_of(event).raw_input_contents_size() == 10, "an empty event is sent");
}

void rows_return_to_the_order_of_the_hits() {
  const Labels labels = labels_of(right_answer(), {2, 0, 2});
  check(labels.semantic == std::vector<float>{2, 1, 3, 4, 5, 6}, "scores");
  check(labels.label == std::vector<std::int32_t>{0, 1, 1}, "labels");
  check(labels.filter == std::vector<float>{0.1F, 0.5F, 0.2F}, "filter");
}

void an_answer_that_does_not_fit_is_refused() {
  const auto told = [](const std::function<void(wire::InferResponse&)>& spoil,
                       const std::string& words) {
    wire::InferResponse answer = right_answer();
    spoil(answer);
    check(refuses([&] { labels_of(answer, {2, 0, 2}); }, Error::Kind::refused, words),
          words.c_str());
  };
  told([](auto& a) { a.mutable_outputs(0)->set_name("x"); }, "no x_semantic_u");
  told([](auto& a) { a.mutable_outputs(0)->set_datatype("INT32"); }, "not FP32");
  told([](auto& a) { a.mutable_outputs(0)->set_shape(0, -1); }, "bytes for shape [-1, 2]");
  told([](auto& a) { a.mutable_outputs(0)->set_shape(0, std::int64_t{1} << 62); }, "bytes for");
  told([](auto& a) { a.mutable_outputs(1)->set_shape(1, std::int64_t{1} << 62); }, "columns");
  told([](auto& a) { output(a, "v_evt", {1}, {1}); }, "v_evt with 1 values");
  told([](auto& a) { a.mutable_outputs(0)->clear_shape(); }, "0 dimensions");
  told([](auto& a) { a.mutable_raw_output_contents(0)->pop_back(); }, "7 bytes");
  told([](auto& a) { a.mutable_raw_output_contents()->RemoveLast(); }, "no values");
  told([](auto& a) { a.mutable_outputs(2)->set_shape(0, 4); a.mutable_outputs(2)->set_shape(1, 1); },
       "4 rows for 2 hits");
  wire::InferResponse wide;  // no hits: 4e18 columns of nothing
  for (const std::string plane : {"u", "v", "y"}) {
    output(wide, "x_semantic_" + plane, {0, std::int64_t{1} << 62}, {});
    output(wide, "x_filter_" + plane, {0}, {});
  }
  check(refuses([&] { labels_of(wide, {}); }, Error::Kind::refused, "columns"), "a wide answer");
  told([](auto& a) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(a.mutable_raw_output_contents(0)->data(), &nan, sizeof nan);
  }, "NaN");
}

void addresses_are_read_as_by_numlkit() {
  check(Address::parse("host").target == "host:8001", "the default port");
  check(Address::parse("grpcs://host").url() == "grpcs://host:443", "and with TLS");
  check(Address::parse("[::1]:9").target == "[::1]:9", "IPv6");
  check(Address::parse("[::1]").target == "[::1]:8001", "IPv6 without a port");
  for (const char* here : {"127.0.0.1", "localhost:9", "grpcs://[::1]"}) {
    check(is_loopback(Address::parse(here).target), here);
  }
  for (const char* elsewhere : {"host", "localhost.example.org", "[::2]"}) {
    check(!is_loopback(Address::parse(elsewhere).target), elsewhere);
  }
  check(refuses([] { Address::parse("http://host"); }, Error::Kind::usage, "scheme"), "a scheme");
  for (const char* port : {"host:", "host:0", "host:65536", "host:abc", "grpc://[::1]:-1"}) {
    check(refuses([&] { Address::parse(port); }, Error::Kind::usage, "from 1 to 65535"), port);
  }
  check(refuses([] { Address::parse("host/path"); }, Error::Kind::usage, "address"), "a path");
}

void what_a_server_says_decides_what_follows() {
  const auto end = [](grpc::StatusCode code, const char* text) {
    return meaning(grpc::Status(code, text));
  };
  using grpc::StatusCode;
  check(end(StatusCode::UNAVAILABLE, "Socket closed") == End::away, "a lost connection");
  check(end(StatusCode::UNAVAILABLE, "This protocol is restricted") == End::refused, "closed");
  check(end(StatusCode::INTERNAL, "Stub process 'm' is not healthy.") == End::away, "a stub");
  check(end(StatusCode::NOT_FOUND, "Request for unknown model: 'm'") == End::no_model, "a model");
  check(end(StatusCode::INVALID_ARGUMENT, "row 3") == End::refused, "a bad event");
  check(end(StatusCode::PERMISSION_DENIED, "no") == End::refused, "no permission");
  check(end(StatusCode::RESOURCE_EXHAUSTED, "local_rate_limited") == End::above_rate, "a rate");
  check(end(StatusCode::RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (9 vs. 8)") ==
            End::refused, "a long message");
  check(end(StatusCode::UNAVAILABLE, "Received http2 header with status: 429") == End::above_rate,
        "HAProxy's");
  const grpc::Status long_winded(
      StatusCode::INTERNAL,
      "Failed to process the request(s) for model 'm', message: EventError: row 3\n\nAt:\n  x");
  check(reason(long_winded) == "row 3", "one line of it");
  const std::string full = "Exceeds maximum queue size", again = full + ": try again in 2 s";
  check(reason({StatusCode::UNAVAILABLE, full}) == full + ": try again in 1 s", "a full queue");
  check(reason({StatusCode::UNAVAILABLE, again}) == again, "a server that says when");
  check(reason({StatusCode::RESOURCE_EXHAUSTED, "x"}) == "x: try again in 1 s", "a front door");
}

void the_longest_timeout_is_not_over_at_once() {
  Options options;
  options.timeout = std::chrono::milliseconds::max();
  options.fallback.start = "exit 1";  // its failure ends what would wait for a year
  options.fallback.server = "127.0.0.1:1";
  options.fallback.after = 0ms;
  Client client(options);
  auto labels = client.submit(event_of(0));
  check(refuses([&] { labels.get(); }, Error::Kind::unavailable, "ended with status 1"),
        "the longest timeout");
}

void a_fallback_server_that_may_wait_for_ever_is_not_started_at_once() {
  Options options;
  options.servers = {"127.0.0.1:1"};
  options.timeout = 300ms;
  options.fallback.start = "exit 1";
  options.fallback.server = "127.0.0.1:2";
  options.fallback.after = std::chrono::milliseconds::max();
  Client client(options);
  check(refuses([&] { client.label(event_of(0)); }, Error::Kind::unavailable, "unreachable"),
        "the other is waited for");
  check(!client.statistics().fallback_started, "the longest pause before the fallback server");
}

}  // namespace

int main(int count, char** words) {
  if (count == 2) {
    for (const std::string& server : servers_in(words[1])) std::printf("%s\n", server.c_str());
    return 0;
  }
  a_request_goes_to_the_server_with_the_fewest();
  a_lost_server_is_left_alone_and_then_looked_at_by_one_request();
  a_server_that_has_left_gets_no_requests_and_is_as_new_when_it_returns();
  pauses_do_not_grow_beyond_seconds();
  a_budget_is_spent_and_refilled_by_answers();
  what_no_server_takes_is_not_sent();
  rows_return_to_the_order_of_the_hits();
  an_answer_that_does_not_fit_is_refused();
  addresses_are_read_as_by_numlkit();
  what_a_server_says_decides_what_follows();
  the_longest_timeout_is_not_over_at_once();
  a_fallback_server_that_may_wait_for_ever_is_not_started_at_once();
  return failures == 0 ? 0 : 1;
}
