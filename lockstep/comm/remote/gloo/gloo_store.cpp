// SPDX-License-Identifier: BSD-3-Clause
// Answers Gloo's requests for other ranks' addresses with those of the stand-ins.
#include "lockstep/comm/remote/gloo/gloo_store.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>

#include "lockstep/core/error.h"

namespace lockstep::gloo {
namespace {

// Gloo's key "0/2" holds what rank 2 says about its connection 0: addresses and more, in a form
// that depends on Gloo's version. "0/rank_2" holds that rank's host name. All ranks say the same
// except for their addresses, so this rank's own values stand for all.
class GlooStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  using Said = std::map<std::string, Bytes>;

  GlooStore(StandIns stand_ins, std::shared_ptr<Said> said)
      : stand_ins_(stand_ins), said_(std::move(said)) {}

  // libtorch 2.6 and later call this.
  virtual c10::intrusive_ptr<c10d::Store> clone() {
    return c10::make_intrusive<GlooStore>(stand_ins_, said_);
  }

  void set(const std::string& key, const Bytes& value) override { (*said_)[kind_of(key)] = value; }

  Bytes get(const std::string& key) override {
    const auto said = said_->find(kind_of(key));
    if (said == said_->end()) return not_needed<Bytes>();
    const int rank = std::stoi(key.substr(digits_of_rank(key)));
    return moved(said->second, stand_ins_.address(std::stoi(key), rank));
  }

  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  bool check(const std::vector<std::string>&) override { return true; }
  std::int64_t add(const std::string&, std::int64_t) override { return not_needed<std::int64_t>(); }
  bool deleteKey(const std::string&) override { return not_needed<bool>(); }
  std::int64_t getNumKeys() override { return not_needed<std::int64_t>(); }
  Bytes compareSet(const std::string&, const Bytes&, const Bytes&) override {
    return not_needed<Bytes>();
  }

 private:
  template <class Result>
  Result not_needed() const {
    throw BackendError(
        "Gloo asks its store for more than addresses: Lockstep does not know this version of it; "
        "use a libtorch that README names, or another backend");
  }

  static std::size_t digits_of_rank(const std::string& key) {
    return key.find_last_not_of("0123456789") + 1;
  }
  static std::string kind_of(const std::string& key) { return key.substr(0, digits_of_rank(key)); }

  // Replaces this rank's own address, with any port, by the given address.
  static Bytes moved(Bytes value, const sockaddr_in& address) {
    in_addr own{};
    ::inet_pton(AF_INET, kGlooHost, &own);
    sockaddr_in here{};
    for (std::size_t at = 0; at + sizeof here <= value.size(); ++at) {
      std::memcpy(&here, &value[at], sizeof here);
      if (here.sin_family != AF_INET || here.sin_addr.s_addr != own.s_addr) continue;
      std::memcpy(&value[at], &address, sizeof address);
    }
    return value;
  }

  const StandIns stand_ins_;
  const std::shared_ptr<Said> said_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(StandIns stand_ins) {
  return c10::make_intrusive<GlooStore>(stand_ins, std::make_shared<GlooStore::Said>());
}

}  // namespace lockstep::gloo
