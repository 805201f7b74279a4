// SPDX-License-Identifier: BSD-3-Clause
// Requests and answers in etcd's JSON: bytes in base64, 64-bit numbers as text.
#include "lockstep/rendezvous/etcd_client.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sodium.h>

#include "lockstep/core/number.h"

namespace lockstep {
namespace {

using nlohmann::json;

// etcd's codes are those of gRPC.
constexpr int kNotFound = 5;
constexpr Range<std::int64_t> kEtcdNumbers{std::numeric_limits<std::int64_t>::min(),
                                           std::numeric_limits<std::int64_t>::max()};

// Not what etcd answers.
class NotEtcd : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string in_base64(std::string_view bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the null character
  return text;
}

std::string from_base64(const std::string& text) {
  std::string bytes(text.size(), '\0');
  std::size_t length = 0;
  if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &length, nullptr,
                        sodium_base64_VARIANT_ORIGINAL) != 0) {
    throw NotEtcd("a text that is no base64");
  }
  bytes.resize(length);
  return bytes;
}

// The end of the keys that begin with this prefix.
std::string behind(std::string prefix) {
  while (prefix.back() == '\xff') prefix.pop_back();
  ++prefix.back();
  return prefix;
}

// etcd leaves out a member that has its default.
const json& member_of(const json& object, const char* name) {
  static const json missing;
  if (!object.is_object()) throw NotEtcd("a value that is no object");
  const auto found = object.find(name);
  return found == object.end() ? missing : *found;
}

std::int64_t number_in(const json& object, const char* name) {
  const json& value = member_of(object, name);
  if (value.is_null()) return 0;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  const auto number = value.is_string()
                          ? parse_number(value.get_ref<const std::string&>(), kEtcdNumbers)
                          : std::nullopt;
  if (!number) throw NotEtcd(fmt::format("{} that is no number", name));
  return *number;
}

std::string text_in(const json& object, const char* name) {
  const json& value = member_of(object, name);
  if (value.is_null()) return "";
  if (!value.is_string()) throw NotEtcd(fmt::format("{} that is no text", name));
  return value.get<std::string>();
}

bool is_set(const json& object, const char* name) {
  const json& value = member_of(object, name);
  return value.is_boolean() && value.get<bool>();
}

json parse_answer(const std::string& text) {
  json answer = json::parse(text, nullptr, false);
  if (!answer.is_object()) throw NotEtcd(fmt::format("\"{}\"", text.substr(0, 100)));
  return answer;
}

// Has errors say that they are about etcd.
template <class Reading>
auto reading(const std::string& etcd, const Reading& read) -> decltype(read()) {
  constexpr const char* kIsItThere =
      "is it running there, and is that the address at which it serves its clients?";
  try {
    return read();
  } catch (const TimeoutError& error) {
    throw TimeoutError(ErrorContext{}, fmt::format("{}: {}", etcd, error.what()), kIsItThere);
  } catch (const ConnectionClosed& error) {
    throw BackendError(ErrorContext{}, fmt::format("{}: {}", etcd, error.what()), kIsItThere);
  } catch (const NotEtcd& error) {
    throw BackendError(
        ErrorContext{},
        fmt::format("{} does not answer as etcd 3.4 or later does: {}", etcd, error.what()),
        "give the address at which etcd serves its clients, without TLS");
  }
}

}  // namespace

std::vector<Endpoint> EtcdClient::addresses() const {
  const std::lock_guard lock(mutex_);
  if (addresses_.empty()) addresses_ = resolve_tcp(server_.host, server_.port);
  return addresses_;
}

void EtcdClient::pass_over(const Endpoint& address) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(addresses_, address);
  if (found != addresses_.end()) std::rotate(found, found + 1, addresses_.end());
}

HttpPost EtcdClient::send(const std::string& path, const json& request,
                          const Deadline& deadline) const {
  const std::vector<Endpoint> all = addresses();
  for (auto address = all.begin();; ++address) {
    const Deadline share = Deadline::after(deadline.remaining() / (all.end() - address));
    try {
      return HttpPost(*address, server_, path, request.dump(), share);
    } catch (const Error&) {
      pass_over(*address);
      if (address + 1 != all.end()) continue;
      const std::lock_guard lock(mutex_);
      addresses_.clear();
      throw;
    }
  }
}

template <class Reading>
auto EtcdClient::post(const std::string& path, const json& request, const Deadline& deadline,
                      const Reading& read) const {
  return reading(name(), [&] {
    HttpPost sent = send(path, request, deadline);
    try {
      return read(sent);
    } catch (const LeaseLost&) {
      throw;
    } catch (const std::exception&) {
      pass_over(sent.address());
      throw;
    }
  });
}

json EtcdClient::ask(const std::string& path, const json& request) const {
  const Deadline deadline = Deadline::after(patience_);
  return post(path, request, deadline, [&](HttpPost& sent) {
    const int status = sent.status(deadline);
    json answer = parse_answer(sent.body(deadline));
    if (status == 200) return answer;
    // The error of a stream, as a renewal is one, is an object.
    const json& error = member_of(answer, "error");
    const json& told = error.is_object() ? error : answer;
    const std::string reason = fmt::format("{} refuses: {}", name(), text_in(told, "message"));
    if (number_in(told, "code") == kNotFound || number_in(told, "grpc_code") == kNotFound) {
      throw LeaseLost(reason);
    }
    throw BackendError(reason);
  });
}

std::int64_t EtcdClient::grant_lease(std::chrono::seconds life) const {
  const json answer = ask("/v3/lease/grant", {{"TTL", life.count()}});
  return reading(name(), [&] { return number_in(answer, "ID"); });
}

void EtcdClient::keep_alive(std::int64_t lease) const {
  const json answer = ask("/v3/lease/keepalive", {{"ID", lease}});
  const std::int64_t life =
      reading(name(), [&] { return number_in(member_of(answer, "result"), "TTL"); });
  if (life <= 0) throw LeaseLost(fmt::format("{}: the lease has expired", name()));
}

void EtcdClient::revoke(std::int64_t lease) const {
  try {
    ask("/v3/lease/revoke", {{"ID", lease}});
  } catch (const LeaseLost&) {
    // As the caller wants.
  }
}

EtcdClient::Snapshot EtcdClient::read(const std::string& prefix) const {
  const json answer =
      ask("/v3/kv/range", {{"key", in_base64(prefix)}, {"range_end", in_base64(behind(prefix))}});
  return reading(name(), [&] {
    Snapshot found{.revision = number_in(member_of(answer, "header"), "revision")};
    if (is_set(answer, "more")) throw NotEtcd("a part of the keys");
    for (const json& entry : member_of(answer, "kvs")) {
      found.entries[from_base64(text_in(entry, "key"))] = {
          .value = from_base64(text_in(entry, "value")),
          .made = number_in(entry, "create_revision"),
          .changed = number_in(entry, "mod_revision")};
    }
    return found;
  });
}

void EtcdClient::put(const std::string& key, const std::string& value, std::int64_t lease) const {
  ask("/v3/kv/put", {{"key", in_base64(key)}, {"value", in_base64(value)}, {"lease", lease}});
}

bool EtcdClient::change_if(const std::string& key, std::int64_t changed, json operation) const {
  const json condition = {
      {"target", "MOD"}, {"result", "EQUAL"}, {"key", in_base64(key)}, {"mod_revision", changed}};
  const json answer = ask("/v3/kv/txn", {{"compare", json::array({condition})},
                                         {"success", json::array({std::move(operation)})}});
  return reading(name(), [&] { return is_set(answer, "succeeded"); });
}

bool EtcdClient::replace(const std::string& key, std::int64_t changed,
                         const std::string& value) const {
  return change_if(key, changed,
                   {{"request_put", {{"key", in_base64(key)}, {"value", in_base64(value)}}}});
}

bool EtcdClient::remove(const std::string& key, std::int64_t changed) const {
  return change_if(key, changed, {{"request_delete_range", {{"key", in_base64(key)}}}});
}

void EtcdClient::wait_for_change(const std::string& prefix, std::int64_t revision,
                                 const Deadline& deadline, int wake) const {
  const json request = {{"create_request",
                         {{"key", in_base64(prefix)},
                          {"range_end", in_base64(behind(prefix))},
                          {"start_revision", revision + 1}}}};
  const Deadline patience = Deadline::after(patience_);
  post("/v3/watch", request, patience, [&](HttpPost& watch) {
    if (const int status = watch.status(patience); status != 200) {
      throw BackendError(fmt::format("{} refuses to watch keys: HTTP status {}", name(), status));
    }
    while (!deadline.passed()) {
      std::optional<std::string> line;
      try {
        line = watch.line(deadline, wake);
      } catch (const TimeoutError&) {
        return;
      }
      if (!line) return;
      const json answer = parse_answer(*line);
      const json& result = member_of(answer, "result");
      if (result.is_null()) throw NotEtcd(fmt::format("\"{}\"", line->substr(0, 100)));
      // It has nothing to watch if it has forgotten that revision, since it has changed since.
      if (is_set(result, "canceled") || !member_of(result, "events").empty()) return;
    }
  });
}

}  // namespace lockstep
