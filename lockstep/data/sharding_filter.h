// SPDX-License-Identifier: BSD-3-Clause
// Public. Deals the items of a stream of unknown length to the ranks, like Python's
// itertools.islice(stream, rank, None, world_size) and the sharding_filter of PyTorch's data pipes.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/comm/group_argument.h"
#include "lockstep/data/epoch_sampler.h"

namespace lockstep {

struct ShardingFilterOptions {
  // Drops an incomplete last round, so that every rank has the same number of items, as training
  // with DistributedDataParallel needs. If false, no item is lost, as evaluation needs: if the
  // number of items is not a multiple of the ranks, the first ranks have one item more.
  bool drop_last = false;
};

// Rank r takes items r, r + ranks, r + 2 ranks, and so on of any range, for example a loader over a
// torch::data::datasets::StatefulDataset, whose items are batches:
//
//   auto loader = torch::data::make_data_loader(stream.map(Stack<>()), 64);
//   lockstep::ShardingFilter batches(*loader, group, {.drop_last = true});
//   for (auto& batch : batches) ...
//
// Every rank reads the whole range, which must give the same items in the same order on all of
// them; a loader over a StatefulDataset does so only with at most one worker. `ranks` items are a
// round: a rank reads a whole round, keeping a copy of its item, before it yields the item.
//
// An lvalue is referred to and must outlive the filter; an rvalue is moved into it. Each begin()
// starts the range again. One loop at a time; the filter must not move during it.
template <class Stream>
class ShardingFilter {
  using Source = decltype(std::begin(std::declval<Stream&>()));
  using End = decltype(std::end(std::declval<Stream&>()));
  using Item = std::remove_cvref_t<decltype(*std::declval<Source&>())>;

 public:
  // Makes the filter of this rank of the group, which it does not keep alive.
  ShardingFilter(Stream&& stream, GroupArgument group, const ShardingFilterOptions& options = {})
      : ShardingFilter(std::forward<Stream>(stream), group.get().size(), group.get().rank(),
                       options) {}
  // Makes the filter of rank `rank` of `num_replicas`. UsageError unless 0 <= rank < num_replicas.
  ShardingFilter(Stream&& stream, int num_replicas, int rank,
                 const ShardingFilterOptions& options = {})
      : stream_(std::forward<Stream>(stream)),
        ranks_(num_replicas),
        rank_(rank),
        drop_last_(options.drop_last) {
    require_rank("ShardingFilter", num_replicas, rank);
  }

  class Iterator {
   public:
    using value_type = Item;
    using difference_type = std::ptrdiff_t;

    Item& operator*() const { return *filter_->item_; }
    Item* operator->() const { return &*filter_->item_; }
    Iterator& operator++() {
      filter_->read_round();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !filter_->item_; }

   private:
    friend class ShardingFilter;
    explicit Iterator(ShardingFilter* filter) : filter_(filter) {}

    ShardingFilter* filter_;
  };

  Iterator begin() {
    source_.emplace(std::begin(stream_));
    end_.emplace(std::end(stream_));
    read_round();
    return Iterator(this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  void read_round() {
    item_.reset();
    int read = 0;
    for (; read < ranks_ && *source_ != *end_; ++read, ++*source_) {
      if (read == rank_) item_.emplace(**source_);
    }
    if (drop_last_ && read < ranks_) item_.reset();
  }

  Stream stream_;
  int ranks_;
  int rank_;
  bool drop_last_;
  std::optional<Source> source_;
  std::optional<End> end_;
  std::optional<Item> item_;
};

template <class Stream>
ShardingFilter(Stream&&, GroupArgument, const ShardingFilterOptions& = {})
    -> ShardingFilter<Stream>;
template <class Stream>
ShardingFilter(Stream&&, int, int, const ShardingFilterOptions& = {}) -> ShardingFilter<Stream>;

}  // namespace lockstep
