// SPDX-License-Identifier: BSD-3-Clause
// Ranks that compare their calls, over messages that stay in this process.
#include "lockstep/comm/remote/comparing_transport.h"

#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "lockstep/comm/core/call.h"

namespace lockstep::remote {
namespace {

using ::testing::HasSubstr;

// What is on its way: from, to, tag.
using Wire = std::map<std::tuple<int, int, int>, std::deque<at::Tensor>>;

class Arrival final : public Transmission {
 public:
  Arrival(Wire& wire, int rank, std::vector<Messenger::Message> expected,
          std::shared_ptr<void> memory)
      : wire_(wire), rank_(rank), expected_(std::move(expected)), memory_(std::move(memory)) {}

  // As a library does it: a message that is longer than its memory ends the process.
  bool done() override {
    std::erase_if(expected_, [this](const Messenger::Message& awaited) {
      auto& messages = wire_[{awaited.peer, rank_, awaited.tag}];
      if (messages.empty()) return false;
      const at::Tensor message = messages.front();
      messages.pop_front();
      EXPECT_LE(message.numel(), awaited.bytes);
      std::memcpy(awaited.data, message.data_ptr(), message.nbytes());
      return true;
    });
    return expected_.empty();
  }

 private:
  Wire& wire_;
  int rank_;
  std::vector<Messenger::Message> expected_;
  std::shared_ptr<void> memory_;
};

class WireMessenger final : public Messenger {
 public:
  WireMessenger(Wire& wire, int rank) : wire_(wire), rank_(rank) {}
  std::unique_ptr<Transmission> exchange(std::span<const Message> outgoing,
                                         std::span<const Message> incoming,
                                         std::shared_ptr<void> memory) override {
    for (const auto& [data, bytes, peer, tag] : outgoing) {
      wire_[{rank_, peer, tag}].push_back(at::from_blob(data, {bytes}, at::kByte).clone());
    }
    return std::make_unique<Arrival>(wire_, rank_, std::vector(incoming.begin(), incoming.end()),
                                     std::move(memory));
  }
  int tags() const override { return 1 << 29; }
  std::unique_ptr<Transmission> send(at::Tensor, int, int) override { return nullptr; }
  std::unique_ptr<Transmission> receive(at::Tensor, int, int) override { return nullptr; }
  std::unique_ptr<Transmission> broadcast(at::Tensor, int) override { return nullptr; }
  std::int64_t chunk_bytes_between_machines() const override { return 1; }
  std::uint64_t events() const override { return 0; }
  void wait_for_event(std::uint64_t, std::chrono::microseconds) override {}

 private:
  Wire& wire_;
  int rank_;
};

class ComparingTransportTest : public ::testing::Test {
 protected:
  struct Rank {
    Rank(Wire& wire, int number)
        : number(number), transport(std::make_unique<WireMessenger>(wire, number), number, 2) {}
    // Sends the other rank the bytes of `out`, and expects as many as `in` has.
    void start(const Call& call, const at::Tensor& out, const at::Tensor& in, std::size_t stage = 0,
               std::vector<std::int64_t> sizes = {}) {
      std::vector<std::int64_t> out_bytes{0, 0};
      std::vector<std::int64_t> in_bytes{0, 0};
      out_bytes[static_cast<std::size_t>(1 - number)] = out.numel();
      in_bytes[static_cast<std::size_t>(1 - number)] = in.numel();
      transport.begin_stage(call, stage, sizes);
      transmission = transport.exchange(out, out_bytes, in, in_bytes);
    }
    int number;
    ComparingTransport transport;
    std::unique_ptr<Transmission> transmission;
  };

  std::size_t messages_to(int rank) const {
    std::size_t count = 0;
    for (const auto& [way, messages] : wire_) {
      if (std::get<1>(way) == rank) count += messages.size();
    }
    return count;
  }

  Wire wire_;
  Rank first_{wire_, 0};
  Rank second_{wire_, 1};
};

at::Tensor bytes(std::int64_t count, int value) {
  return at::full({count}, value, at::kByte);
}

const Call kSum{.collective = Collective::all_reduce, .type = at::kFloat, .elements = 7};

TEST_F(ComparingTransportTest, ASmallBlockIsOneMessageALargeOneTwo) {
  for (const auto& [count, messages] : {std::pair{1024, 1U}, {1 << 20, 2U}}) {
    const at::Tensor in = bytes(count, 0);
    first_.start(kSum, bytes(count, 1), in);
    EXPECT_EQ(messages_to(1), messages);
    EXPECT_FALSE(first_.transmission->done());
    second_.start(kSum, bytes(count, 2), bytes(count, 0));
    EXPECT_TRUE(first_.transmission->done());
    EXPECT_TRUE(second_.transmission->done());
    EXPECT_TRUE((in == 2).all().item<bool>());
  }
}

TEST_F(ComparingTransportTest, ALaterStepHasNoHeads) {
  first_.start(kSum, bytes(100, 1), bytes(100, 0), 1);
  EXPECT_EQ(messages_to(1), 1U);
  EXPECT_EQ(wire_.begin()->second.front().numel(), 100);
}

TEST_F(ComparingTransportTest, UsesNoBytesOfAnotherCall) {
  Call other = kSum;
  const std::vector<std::function<void()>> differences{
      [&] { other.collective = Collective::reduce_scatter; },
      [&] { other.op = ReduceOp::max; },
      [&] { other.type = at::kInt; },
      [&] { other.elements = 8; },
      [&] { other.root = 1; },
      [&] { other.scale = 2; },
      [&] { other.tensors = 2; },
      [&] { other.number = 1; }};
  for (const auto& differ : differences) {
    other = kSum;
    differ();
    for (const std::int64_t count : {0, 1024, 1 << 20}) {
      SCOPED_TRACE(describe(other) + " of " + std::to_string(count));
      wire_.clear();
      const at::Tensor in = bytes(20'000, 0);
      first_.start(kSum, bytes(20'000, 1), in);
      second_.start(other, bytes(count, 2), bytes(count, 0));
      EXPECT_THROW(second_.transmission->done(), CallsDiffer);
      try {
        first_.transmission->done();
        ADD_FAILURE() << "no error";
      } catch (const CallsDiffer& error) {
        EXPECT_EQ(error.own(), kSum);
        EXPECT_EQ(error.peer(), 1);
        EXPECT_EQ(error.peers_call(), other);
        EXPECT_THAT(error.what(), HasSubstr("this rank called all_reduce #0 (sum of 7 Float"));
        EXPECT_THAT(error.what(), HasSubstr("but rank 1 called " + describe(other)));
      }
      EXPECT_TRUE((in == 0).all().item<bool>());
    }
  }
}

// The sizes are: to rank 0, to rank 1, from rank 0, from rank 1.
TEST_F(ComparingTransportTest, SizesOfAnAllToAllMustMatch) {
  const Call call{.collective = Collective::all_to_all};
  const std::int64_t seven_floats = 7 << 8 | static_cast<std::int64_t>(at::kFloat);
  const std::int64_t seven_ints = 7 << 8 | static_cast<std::int64_t>(at::kInt);
  first_.start(call, bytes(28, 1), bytes(28, 0), 0, {0, seven_floats, 0, seven_floats});
  second_.start(call, bytes(28, 2), bytes(28, 0), 0, {seven_floats, 0, seven_ints, 0});
  for (Rank* rank : {&first_, &second_}) {
    EXPECT_THAT([&] { rank->transmission->done(); },
                ::testing::ThrowsMessage<UsageError>(
                    HasSubstr("rank 0 called it with 7 Float elements for rank 1, which called it "
                              "with 7 Int elements from rank 0")));
  }
}

}  // namespace
}  // namespace lockstep::remote
