// SPDX-License-Identifier: BSD-3-Clause
// Wrong arguments, which a rank refuses by itself.
#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/tensor/piece.h"

namespace lockstep::testing {
namespace {

struct WrongCall {
  std::string what;
  // What the message must say, beside the backend, the operation and the rank.
  std::vector<std::string> patterns;
  std::function<void(ProcessGroup&)> call;
};

std::vector<WrongCall> wrong_calls(int ranks) {
  const auto some = [](int count, at::ScalarType type = at::kFloat) {
    return at::zeros({count}, type);
  };
  const auto list = [=](int tensors, int count, at::ScalarType type = at::kFloat) {
    std::vector<at::Tensor> result;
    for (int i = 0; i < tensors; ++i) result.push_back(some(count, type));
    return result;
  };
  const at::Tensor sparse = at::eye(3).to_sparse();
  const at::Tensor expanded = at::zeros({1, 3}).expand({4, 3});
  return {
      {"no tensors", {"all_reduce", "empty"}, [=](auto& g) { g.all_reduce(list(0, 0)).wait(); }},
      {"undefined",
       {"all_reduce", "undefined"},
       [=](auto& g) { g.all_reduce(at::Tensor()).wait(); }},
      {"sparse", {"all_reduce", "sparse"}, [=](auto& g) { g.all_reduce(sparse).wait(); }},
      {"without elements",
       {"all_reduce", "meta"},
       [=](auto& g) { g.all_reduce(at::zeros({3}, at::kMeta)).wait(); }},
      {"outputs without elements",
       {"all_gather", "meta"},
       [=](auto& g) {
         g.all_gather(std::vector(ranks, at::zeros({3}, at::kMeta)), some(3)).wait();
       }},
      {"sending no elements",
       {"send", "meta"},
       [=](auto& g) { g.send(at::zeros({3}, at::kMeta), (g.rank() + 1) % g.size()).wait(); }},
      {"a device that is not there",
       {"empty", "cuda:77"},
       [=](auto& g) { g.empty({3}, at::Device(at::kCUDA, 77)); }},
      {"a device that holds nothing",
       {"empty", "meta"},
       [=](auto& g) { g.empty({3}, at::Device(at::kMeta)); }},
      {"more bytes than there are numbers for",
       {"empty", "4294967296, 4294967296", "Float"},
       [=](auto& g) {
         g.empty({1LL << 32, 1LL << 32}, at::kFloat);
       }},
      {"a negative size",
       {"empty", "-3"},
       [=](auto& g) {
         g.empty({2, -3}, at::kFloat);
       }},
      {"common memory of a negative size",
       {"common_memory", "-3"},
       [=](auto& g) {
         g.common_memory({2, -3}, at::kFloat);
       }},
      {"the product of a complex type",
       {"all_reduce", "ComplexFloat have no product", "at::view_as_real"},
       [=](auto& g) { g.all_reduce(some(3, at::kComplexFloat), ReduceOp::product).wait(); }},
      {"the maximum of a complex type",
       {"reduce_scatter", "ComplexDouble have no max"},
       [=](auto& g) {
         g.reduce_scatter(some(3, at::kComplexDouble), list(ranks, 3, at::kComplexDouble),
                          ReduceOp::max)
             .wait();
       }},
      {"a sum of complex halves",
       {"all_reduce", "ComplexHalf have no sum"},
       [=](auto& g) { g.all_reduce(at::empty({3}, at::kComplexHalf)).wait(); }},
      {"mean of ints",
       {"all_reduce", "mean", "Int"},
       [=](auto& g) { g.all_reduce(some(3, at::kInt), {.op = ReduceOp::mean}).wait(); }},
      {"mean of bools",
       {"all_reduce", "mean", "Bool"},
       [=](auto& g) { g.all_reduce(some(3, at::kBool), {.op = ReduceOp::mean}).wait(); }},
      {"scaled longs",
       {"all_reduce", "scale", "Long"},
       [=](auto& g) { g.all_reduce(some(3, at::kLong), {.scale = 2}).wait(); }},
      {"scaled max",
       {"all_reduce", "scale", "max"},
       [=](auto& g) { g.all_reduce(some(3), {.op = ReduceOp::max, .scale = 2}).wait(); }},
      {"mean of a list with ints",
       {"all_reduce", "mean", "Int"},
       [=](auto& g) {
         g.all_reduce({some(3), some(3, at::kInt)}, {.op = ReduceOp::mean}).wait();
       }},
      {"writing to an expanded tensor",
       {"all_reduce", "expand"},
       [=](auto& g) { g.all_reduce(expanded).wait(); }},
      {"a piece beyond the tensor's end",
       {"all_reduce", "3 elements from 2", "4"},
       [=](auto& g) {
         g.all_reduce_pieces(some(4), {{2, some(3)}}).wait();
       }},
      {"pieces that overlap",
       {"all_reduce", "2 elements from 1", "overlaps"},
       [=](auto& g) {
         g.all_reduce_pieces(some(4), {{1, some(2)}, {0, some(2)}}).wait();
       }},
      {"a piece of another type",
       {"all_reduce", "Double", "Float"},
       [=](auto& g) {
         g.all_reduce_pieces(some(4), {{0, some(2, at::kDouble)}}).wait();
       }},
      {"pieces of a matrix",
       {"all_reduce", "one dimension", "2"},
       [=](auto& g) {
         g.all_reduce_pieces(at::zeros({2, 2}), {{0, some(2)}}).wait();
       }},
      {"receiving in an expanded tensor",
       {"broadcast", "expand"},
       [=](auto& g) { g.broadcast(expanded, 0).wait(); }},
      {"root -1", {"broadcast", "-1"}, [=](auto& g) { g.broadcast(some(3), -1).wait(); }},
      {"root too large",
       {"broadcast", std::to_string(ranks)},
       [=](auto& g) { g.broadcast(some(3), ranks).wait(); }},
      {"broadcast of nothing",
       {"broadcast", "empty"},
       [=](auto& g) { g.broadcast(list(0, 0), 0).wait(); }},
      {"too many outputs",
       {"all_gather", std::to_string(ranks + 1)},
       [=](auto& g) { g.all_gather(list(ranks + 1, 3), some(3)).wait(); }},
      {"an output of the wrong size",
       {"all_gather_into_tensor", "7 elements of Float", fmt::format("give it {}", 3 * ranks)},
       [=](auto& g) { g.all_gather_into_tensor(some(7), some(3)).wait(); }},
      {"an output that is not contiguous",
       {"all_gather_into_tensor", "not contiguous"},
       [=](auto& g) {
         g.all_gather_into_tensor(at::zeros({3, ranks + 1}).t().narrow(0, 0, ranks), some(3))
             .wait();
       }},
      {"an input of another type",
       {"reduce_scatter_tensor", "Double", "Float"},
       [=](auto& g) { g.reduce_scatter_tensor(some(3), some(3 * ranks, at::kDouble)).wait(); }},
      {"no outputs", {"all_gather"}, [=](auto& g) { g.all_gather(list(0, 0), some(3)).wait(); }},
      {"outputs of another size",
       {"all_gather", "4", "3"},
       [=](auto& g) { g.all_gather(list(ranks, 4), some(3)).wait(); }},
      {"outputs of another type",
       {"all_gather", "Double", "Float"},
       [=](auto& g) { g.all_gather(list(ranks, 3, at::kDouble), some(3)).wait(); }},
      {"undefined input",
       {"all_gather", "undefined"},
       [=](auto& g) { g.all_gather(list(ranks, 3), at::Tensor()).wait(); }},
      {"an expanded output",
       {"all_gather", "expand"},
       [=](auto& g) {
         g.all_gather(std::vector(ranks, expanded), at::zeros({4, 3})).wait();
       }},
      {"too many inputs",
       {"reduce_scatter", std::to_string(ranks + 1)},
       [=](auto& g) { g.reduce_scatter(some(3), list(ranks + 1, 3)).wait(); }},
      {"inputs of another size",
       {"reduce_scatter", "4", "3"},
       [=](auto& g) { g.reduce_scatter(some(3), list(ranks, 4)).wait(); }},
      {"reduce_scatter: mean of ints",
       {"reduce_scatter", "mean", "Int"},
       [=](auto& g) {
         g.reduce_scatter(some(3, at::kInt), list(ranks, 3, at::kInt), {.op = ReduceOp::mean})
             .wait();
       }},
      {"reduce to no rank",
       {"reduce", std::to_string(ranks)},
       [=](auto& g) { g.reduce(some(3), ranks).wait(); }},
      {"mean of ints to a root",
       {"reduce", "mean", "Int"},
       [=](auto& g) { g.reduce(some(3, at::kInt), 0, {.op = ReduceOp::mean}).wait(); }},
      {"too many outputs on root",
       {"gather", std::to_string(ranks + 1)},
       [=](auto& g) { g.gather(list(ranks + 1, 3), some(3), g.rank()).wait(); }},
      {"inputs of another size on root",
       {"scatter", "4", "3"},
       [=](auto& g) { g.scatter(some(3), list(ranks, 4), g.rank()).wait(); }},
      {"too few pieces",
       {"all_to_all", std::to_string(ranks + 1)},
       [=](auto& g) { g.all_to_all(list(ranks, 3), list(ranks + 1, 3)).wait(); }},
      {"to itself", {"send"}, [=](auto& g) { g.send(some(3), g.rank()).wait(); }},
      {"from no rank", {"recv", "-1"}, [=](auto& g) { g.recv(some(3), -1).wait(); }},
      {"receiving a message in an expanded tensor",
       {"recv", "expand"},
       [=](auto& g) { g.recv(expanded, (g.rank() + 1) % g.size()).wait(); }},
      {"reduce_scatter into an expanded output",
       {"reduce_scatter", "expand"},
       [=](auto& g) {
         g.reduce_scatter(expanded, std::vector(ranks, at::zeros({4, 3}))).wait();
       }},
  };
}

TEST_P(CallsConformance, WrongArgumentsAreRefusedAtOnceAndHarmNothing) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    // One rank alone makes the wrong calls: that they return proves that they wait for nobody.
    if (rank.rank() == rank.size() - 1) {
      for (const auto& wrong : wrong_calls(rank.size())) {
        rank.note(wrong.what);
        auto patterns = wrong.patterns;
        patterns.push_back(fmt::format("^\\[{}\\] ", backend().name));
        patterns.push_back(fmt::format("rank {} of {}", rank.rank(), rank.size()));
        expect_error<UsageError>(wrong.what, patterns, [&] { wrong.call(group); });
      }
    }
    const at::Tensor tensor = at::ones({10});
    group.all_reduce(tensor).wait();
    EXPECT_TRUE((tensor == group.size()).all().item<bool>());
  });
}

}  // namespace
}  // namespace lockstep::testing
