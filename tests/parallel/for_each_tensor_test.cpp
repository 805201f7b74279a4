// SPDX-License-Identifier: BSD-3-Clause
// Finding tensors in outputs of all kinds of types.
#include "lockstep/parallel/for_each_tensor.h"

#include <list>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace elsewhere {

struct Output {
  at::Tensor logits;
  std::vector<at::Tensor> states;
  int steps = 0;
};

template <class Function>
void for_each_tensor(Output& output, Function&& function) {
  function(output.logits);
  for (at::Tensor& state : output.states) function(state);
}

struct Opaque {
  at::Tensor hidden;
};

}  // namespace elsewhere

namespace lockstep {
namespace {

at::Tensor one() {
  return at::ones({1});
}

// Adds 1 to every tensor that is found, and returns how many there were.
template <class Value>
int visit(Value& value) {
  int count = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) {
    tensor = tensor + 1;
    ++count;
  });
  return count;
}

TEST(ForEachTensor, VisitsATensorInPlace) {
  at::Tensor tensor = one();
  EXPECT_EQ(visit(tensor), 1);
  EXPECT_EQ(tensor.item<int>(), 2);
}

TEST(ForEachTensor, VisitsTuplesPairsAndArrays) {
  std::tuple<at::Tensor, int, std::pair<at::Tensor, bool>> tuple{one(), 3, {one(), true}};
  EXPECT_EQ(visit(tuple), 2);
  EXPECT_EQ(std::get<2>(tuple).first.item<int>(), 2);
  std::array<at::Tensor, 3> array{one(), one(), one()};
  EXPECT_EQ(visit(array), 3);
}

TEST(ForEachTensor, VisitsSequencesMapsAndOptionals) {
  std::vector<at::Tensor> vector{one(), one()};
  EXPECT_EQ(visit(vector), 2);
  std::list<std::vector<at::Tensor>> list{{one()}, {}, {one(), one()}};
  EXPECT_EQ(visit(list), 3);
  std::map<std::string, at::Tensor> map{{"a", one()}, {"b", one()}};
  EXPECT_EQ(visit(map), 2);
  EXPECT_EQ(map["b"].item<int>(), 2);
  std::unordered_map<int, std::optional<at::Tensor>> nested{{1, one()}, {2, std::nullopt}};
  EXPECT_EQ(visit(nested), 1);
  c10::optional<at::Tensor> optional = one();
  EXPECT_EQ(visit(optional), 1);
}

TEST(ForEachTensor, PassesOverNumbersAndText) {
  std::tuple<int, double, std::string, std::vector<bool>, std::vector<float>> plain;
  EXPECT_EQ(visit(plain), 0);
}

TEST(ForEachTensor, TakesATypesOwnVersion) {
  elsewhere::Output output{one(), {one(), one()}};
  EXPECT_EQ(visit(output), 3);
  std::vector<elsewhere::Output> several{{one(), {}}, {one(), {one()}}};
  EXPECT_EQ(visit(several), 3);
}

TEST(ForEachTensor, KnowsWhatItCanLookInto) {
  static_assert(TensorStructure<at::Tensor>);
  static_assert(TensorStructure<std::vector<at::Tensor>>);
  static_assert(TensorStructure<elsewhere::Output>);
  static_assert(!TensorStructure<elsewhere::Opaque>);
}

}  // namespace
}  // namespace lockstep
