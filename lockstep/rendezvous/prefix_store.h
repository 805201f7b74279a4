// SPDX-License-Identifier: BSD-3-Clause
// A view of another store under a key prefix, like c10d's PrefixStore.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lockstep/rendezvous/store.h"

namespace lockstep {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store)
      : prefix_(std::move(prefix)), store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, value);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return store_->add(prefix_ + key, amount);
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    return store_->get(prefix_ + key, deadline);
  }
  std::string refused() const override { return store_->refused(); }

 private:
  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace lockstep
