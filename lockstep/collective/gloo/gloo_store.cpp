// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/gloo/gloo_store.h"

#include <string>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

class GlooStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  explicit GlooStore(std::shared_ptr<lockstep::Store> store) : store_(std::move(store)) {}

  // Asked for since libtorch 2.6.
  virtual c10::intrusive_ptr<c10d::Store> clone() { return c10::make_intrusive<GlooStore>(store_); }

  void set(const std::string& key, const Bytes& value) override {
    store_->set(key, {value.begin(), value.end()});
  }
  Bytes get(const std::string& key) override {
    const std::string value = store_->get(key, Deadline::after(timeout_));
    return {value.begin(), value.end()};
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    return store_->add(key, value);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    const Deadline deadline = Deadline::after(timeout);
    for (const auto& key : keys) store_->get(key, deadline);
  }

  bool check(const std::vector<std::string>&) override { return not_needed<bool>(); }
  bool deleteKey(const std::string&) override { return not_needed<bool>(); }
  std::int64_t getNumKeys() override { return not_needed<std::int64_t>(); }
  Bytes compareSet(const std::string&, const Bytes&, const Bytes&) override {
    return not_needed<Bytes>();
  }

 private:
  template <class Result>
  Result not_needed() const {
    throw BackendError("Gloo asks its store for more than it did when this was written");
  }

  std::shared_ptr<lockstep::Store> store_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_gloo_store(std::shared_ptr<Store> store) {
  return c10::make_intrusive<GlooStore>(std::move(store));
}

}  // namespace lockstep
