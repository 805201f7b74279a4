// SPDX-License-Identifier: BSD-3-Clause
// Streams of every kind, dealt to ranks.
#include "lockstep/data/sharding_filter.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/data.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Numbers = std::vector<int>;

static_assert(std::input_iterator<ShardingFilter<Numbers>::Iterator>);
static_assert(std::is_same_v<decltype(ShardingFilter(std::declval<Numbers&>(), 2, 0)),
                             ShardingFilter<Numbers&>>);

Numbers count_to(int end) {
  Numbers numbers(static_cast<std::size_t>(end));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

template <class Filter>
auto items_of(Filter& filter) {
  std::vector<std::remove_cvref_t<decltype(*filter.begin())>> items;
  for (auto& item : filter) items.push_back(std::move(item));
  return items;
}

// The ranks' items, in turn: rank 0's first, rank 1's first, and so on.
Numbers dealt_in_turn(int items, int ranks, bool drop_last) {
  std::vector<Numbers> of_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    ShardingFilter filter(count_to(items), ranks, rank, {.drop_last = drop_last});
    of_rank.push_back(items_of(filter));
  }
  Numbers all;
  for (std::size_t round = 0; round < of_rank[0].size(); ++round) {
    for (const auto& own : of_rank) {
      if (round < own.size()) all.push_back(own[round]);
    }
  }
  return all;
}

TEST(ShardingFilter, DealsEveryItemInTurn) {
  for (int ranks = 1; ranks < 5; ++ranks) {
    for (int items = 0; items < 10; ++items) {
      EXPECT_EQ(dealt_in_turn(items, ranks, false), count_to(items));
      EXPECT_EQ(dealt_in_turn(items, ranks, true), count_to(items / ranks * ranks));
    }
  }
}

TEST(ShardingFilter, IsUnevenUnlessTheRestIsDropped) {
  const Numbers stream = count_to(5);
  ShardingFilter rank_0(stream, 2, 0);
  ShardingFilter rank_1(stream, 2, 1);
  EXPECT_THAT(items_of(rank_0), ElementsAre(0, 2, 4));
  EXPECT_THAT(items_of(rank_1), ElementsAre(1, 3));
  ShardingFilter even(stream, 2, 0, {.drop_last = true});
  EXPECT_THAT(items_of(even), ElementsAre(0, 2));
}

TEST(ShardingFilter, LeavesTheStreamsItemsAlone) {
  std::vector<std::string> words{"a", "b", "c"};
  ShardingFilter filter(words, 1, 0);
  EXPECT_EQ(items_of(filter), words);
  EXPECT_THAT(words, ElementsAre("a", "b", "c"));
}

// Can be read once, and gives items that cannot be copied.
struct Source {
  struct Iterator {
    Source* source;
    std::unique_ptr<int> operator*() const { return std::make_unique<int>(source->next); }
    Iterator& operator++() {
      ++source->next;
      return *this;
    }
    bool operator!=(int end) const { return source->next != end; }
  };
  Iterator begin() { return {this}; }
  int end() const { return 6; }

  int next = 0;
};

TEST(ShardingFilter, TakesAnythingThatALoopTakes) {
  ShardingFilter from_source(Source{}, 3, 2);
  const auto items = items_of(from_source);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(*items[0], 2);
  EXPECT_EQ(*items[1], 5);
  const int array[] = {7, 8, 9};
  ShardingFilter from_array(array, 2, 0);
  EXPECT_THAT(items_of(from_array), ElementsAre(7, 9));
}

// A stream of 20 numbers, in batches; it does not know its size.
class Counting : public torch::data::datasets::StatefulDataset<Counting> {
 public:
  c10::optional<std::vector<torch::data::Example<>>> get_batch(std::size_t size) override {
    std::vector<torch::data::Example<>> batch;
    for (; batch.size() < size && next_ < 20; ++next_) {
      batch.push_back({torch::tensor(next_), torch::zeros({})});
    }
    if (batch.empty()) return c10::nullopt;
    return batch;
  }
  c10::optional<std::size_t> size() const override { return c10::nullopt; }
  void reset() override { next_ = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  int next_ = 0;
};

TEST(ShardingFilter, DealsALoadersBatchesInEachEpoch) {
  testing::run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    auto loader =
        torch::data::make_data_loader(Counting().map(torch::data::transforms::Stack<>()), 3);
    ShardingFilter batches(*loader, group, {.drop_last = true});
    for (int epoch = 0; epoch < 2; ++epoch) {
      // The stream has seven batches; the last is of an incomplete round.
      Numbers firsts;
      for (auto& batch : batches) firsts.push_back(batch.data[0].item<int>());
      EXPECT_EQ(firsts, group->rank() == 0 ? Numbers({0, 6, 12}) : Numbers({3, 9, 15}));
    }
  });
}

TEST(ShardingFilter, RefusesARankThatDoesNotExist) {
  EXPECT_THAT([] { ShardingFilter(Numbers{}, 2, 2); },
              ThrowsMessage<UsageError>(HasSubstr("[ShardingFilter] rank 2 of 2 replicas")));
  ShardingFilter empty(Numbers{}, 2, 1);
  EXPECT_THAT(items_of(empty), IsEmpty());
}

}  // namespace
}  // namespace lockstep
