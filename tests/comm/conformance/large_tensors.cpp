// SPDX-License-Identifier: BSD-3-Clause
// What collectives compute for large tensors.
#include <cstring>

#include "comm/conformance/conformance.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {
namespace {

// Elements that a sanitizer has to watch one by one take memory of their own.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_P(ResultsConformance, AGibibyte) {
  if (!backend().shares_memory || size() != 2) GTEST_SKIP() << "two ranks on one machine show it";
  run(
      [this](Rank& rank) {
        // A ring of so many bytes takes long beside other programs.
        const auto joined = join(rank, {.timeout = std::chrono::seconds(90)});
        ProcessGroup& group = *joined;
        constexpr std::int64_t kCount = std::int64_t{1} << 30;
        const auto expect_all = [&](const at::Tensor& tensor, int value, const char* what) {
          const auto* const bytes = tensor.data_ptr<std::uint8_t>();
          EXPECT_EQ(bytes[0], value) << what;
          EXPECT_EQ(std::memcmp(bytes, bytes + 1, tensor.nbytes() - 1), 0) << what << ": not alike";
        };
        const at::Tensor shared = group.empty({kCount}, at::kByte);
        const at::Tensor ordinary = at::empty({kCount}, at::kByte);
        const int own = rank.rank();
        for (const auto& [tensor, other] :
             {std::pair(shared, ordinary), std::pair(ordinary, shared)}) {
          const auto halves = tensor.chunk(2);
          const auto other_halves = other.chunk(2);
          for (const auto algorithm : {Algorithm::automatic, Algorithm::ring}) {
            group.all_reduce(tensor.fill_(own + 1), {.algorithm = algorithm}).wait();
            expect_all(tensor, 3, "all_reduce");
          }
          group.broadcast(tensor.fill_(own + 1), 1).wait();
          expect_all(tensor, 2, "broadcast");
          group.reduce(tensor.fill_(own + 1), 1).wait();
          expect_all(tensor, own == 1 ? 3 : 1, "reduce");
          group.all_gather(halves, halves[own].fill_(own + 1)).wait();
          expect_all(halves[0], 1, "all_gather from rank 0");
          expect_all(halves[1], 2, "all_gather from rank 1");
          group.reduce_scatter(halves[own], halves).wait();
          expect_all(halves[own], 2 * (own + 1), "reduce_scatter");
          tensor.fill_(own + 5);
          group.all_to_all(other_halves, halves).wait();
          expect_all(other_halves[0], 5, "all_to_all from rank 0");
          expect_all(other_halves[1], 6, "all_to_all from rank 1");
          halves[0].fill_(9);
          group.scatter(halves[0], own == 0 ? other_halves : std::vector<at::Tensor>(), 0).wait();
          expect_all(halves[0], own == 0 ? 5 : 6, "scatter");
          other.fill_(9);
          group.gather(own == 1 ? other_halves : std::vector<at::Tensor>(), halves[0], 1).wait();
          expect_all(other_halves[0], own == 1 ? 5 : 9, "gather from rank 0");
          expect_all(other_halves[1], own == 1 ? 6 : 9, "gather from rank 1");
          tensor.fill_(own + 1);
          (own == 0 ? group.send(tensor, 1) : group.recv(tensor, 0)).wait();
          expect_all(tensor, 1, "send and recv");
        }
      },
      {.deadline = std::chrono::seconds(200)});
}
#endif

TEST_P(ResultsConformance, MillionsOfElements) {
  run_in_group(
      [](Rank& rank, ProcessGroup& group) {
        const std::vector<std::pair<at::ScalarType, std::int64_t>> shapes = {
            {at::kFloat, 1'000'003},    {at::kDouble, 1'000'003}, {at::kHalf, 1'000'003},
            {at::kBFloat16, 1'000'003}, {at::kByte, 1'000'003},   {at::kFloat, 10'485'760}};
        for (const auto& [type, count] : shapes) {
          const std::string what = fmt::format("all_reduce of {} {}", count, c10::toString(type));
          rank.note(what);
          const auto inputs = inputs_of_all(group.size(), type, {count});
          const at::Tensor expected = reduced(inputs);
          const at::Tensor tensor = inputs[rank.rank()].clone();
          const at::Tensor shared = group.empty({count}, type);
          shared.copy_(tensor);
          group.all_reduce(tensor).wait();
          expect_same_bits(tensor, expected, what);
          group.all_reduce(shared).wait();
          expect_same_bits(shared, expected, what + " in the group's memory");
          if (rank.failed()) return;
        }
        const std::int64_t count = 1'000'003;
        const at::Tensor tensor = input_of(rank.rank(), at::kFloat, {count});
        std::vector<at::Tensor> outputs;
        for (int r = 0; r < group.size(); ++r) outputs.push_back(at::zeros({count}));
        group.all_gather(outputs, tensor).wait();
        const at::Tensor output = at::zeros({count});
        group.reduce_scatter(output, outputs).wait();
        expect_same_bits(output, reduced(std::vector(group.size(), outputs[rank.rank()])),
                         "reduce_scatter of what all_gather gathered");
        const int root = group.size() - 1;
        group.broadcast(tensor, root).wait();
        expect_same_bits(tensor, outputs[root], "broadcast");
      },
      {.deadline = std::chrono::seconds(100)});
}

}  // namespace
}  // namespace lockstep::testing
