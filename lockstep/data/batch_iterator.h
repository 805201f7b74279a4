// SPDX-License-Identifier: BSD-3-Clause
// Public. The iterator of one loop over a DataLoader or a MemoryLoader, for range-based for and for
// loops that take batch after batch themselves.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include <torch/data/example.h>

namespace lockstep {

// An input iterator: it holds one batch, which the loop may move from, and `++` blocks until the
// loader has the next one. Compares equal to the loader's end() after the last batch. Copies share
// the loop. Throws what the loader throws.
class BatchIterator {
 public:
  using value_type = torch::data::Example<>;
  using difference_type = std::ptrdiff_t;

  // Returns the next batch; nullopt at the end of the loop.
  using Next = std::function<std::optional<value_type>()>;

  // Takes the first batch.
  explicit BatchIterator(Next next) : next_(std::move(next)), batch_(next_()) {}

  value_type& operator*() { return *batch_; }
  value_type* operator->() { return &*batch_; }
  BatchIterator& operator++() {
    batch_.reset();  // so that the next batch can reuse its memory
    batch_ = next_();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !batch_; }

 private:
  Next next_;
  std::optional<value_type> batch_;
};

}  // namespace lockstep
