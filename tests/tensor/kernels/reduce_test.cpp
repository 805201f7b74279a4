// SPDX-License-Identifier: BSD-3-Clause
// The reduction kernels against a plain loop, for all types and operations.
#include "lockstep/tensor/kernels/reduce.h"

#include <functional>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

// 1, 2 and 3 in an order of its own.
at::Tensor source(int number, std::int64_t count, at::ScalarType type) {
  const at::Tensor stages = at::arange(count, at::kLong).mul(number + 3).add(number);
  return stages.remainder(3).add(1).to(type);
}

at::Tensor applied(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return at::minimum(a, b);
    case ReduceOp::max:
      return at::maximum(a, b);
    case ReduceOp::product:
      return a.mul(b);
    default:
      return a.add(b);
  }
}

// From left to right, accumulated as the header says.
at::Tensor expected(const std::vector<at::Tensor>& sources, ReduceOp op, double scale) {
  const at::ScalarType type = sources.front().scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const auto wide = [&](const at::Tensor& tensor) { return half ? tensor.to(at::kFloat) : tensor; };
  at::Tensor result = wide(sources.front());
  for (std::size_t i = 1; i < sources.size(); ++i) result = applied(result, wide(sources[i]), op);
  if (scale != 1) result = result.mul(scale);
  return result.to(type);
}

void run(std::vector<at::Tensor>& sources, std::vector<at::Tensor>& destinations, ReduceOp op,
         double scale) {
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const at::Tensor& tensor : sources) from.push_back(tensor.data_ptr());
  for (const at::Tensor& tensor : destinations) to.push_back(tensor.data_ptr());
  reduce(from, to, sources.front().numel(), sources.front().scalar_type(), op, scale);
}

void for_each_shape(const std::function<void(int sources, std::int64_t count)>& test) {
  for (const int sources : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    for (const std::int64_t count : {0, 1, 15, 511, 512, 513, 1300}) test(sources, count);
  }
}

std::vector<at::Tensor> sources_of(int number, std::int64_t count, at::ScalarType type) {
  std::vector<at::Tensor> sources;
  for (int i = 0; i < number; ++i) sources.push_back(source(i, count, type));
  return sources;
}

TEST(Reduce, WritesEveryDestination) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kShort,
                          at::kInt, at::kLong, at::kByte}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      for_each_shape([&](int number, std::int64_t count) {
        auto sources = sources_of(number, count, type);
        const at::Tensor wanted = expected(sources, op, 1);
        for (const int receivers : {1, 2, 5}) {
          std::vector<at::Tensor> destinations;
          for (int i = 0; i < receivers; ++i) {
            destinations.push_back(at::zeros_like(sources.front()));
          }
          run(sources, destinations, op, 1);
          for (const at::Tensor& destination : destinations) {
            ASSERT_TRUE(at::equal(destination, wanted))
                << fmt::format("{} of {} sources of {} elements, type {}", name(op), number, count,
                               at::toString(type));
          }
        }
      });
    }
  }
}

TEST(Reduce, WritesOverItsSources) {
  for_each_shape([](int number, std::int64_t count) {
    auto sources = sources_of(number, count, at::kFloat);
    const at::Tensor wanted = expected(sources, ReduceOp::sum, 0.25);
    run(sources, sources, ReduceOp::sum, 0.25);
    for (const at::Tensor& source : sources) {
      ASSERT_TRUE(at::equal(source, wanted)) << number << " sources of " << count;
    }
  });
}

// Sums of floats whose bits depend on the order.
TEST(Reduce, CombinesFromLeftToRight) {
  for_each_shape([](int number, std::int64_t count) {
    std::vector<at::Tensor> sources;
    for (int i = 0; i < number; ++i) sources.push_back(at::randn({count}).mul(1 << (i % 5 * 4)));
    const at::Tensor wanted = expected(sources, ReduceOp::sum, 1);
    std::vector<at::Tensor> destinations{at::zeros({count})};
    run(sources, destinations, ReduceOp::sum, 1);
    ASSERT_TRUE(at::equal(destinations.front(), wanted)) << number << " sources of " << count;
  });
}

TEST(Reduce, LetsNaNWin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto op : {ReduceOp::min, ReduceOp::max}) {
    for (const int number : {2, 3, 6}) {
      for (int at = 0; at < number; ++at) {
        auto sources = sources_of(number, 40, at::kFloat);
        sources[static_cast<std::size_t>(at)].fill_(nan);
        std::vector<at::Tensor> destinations{at::zeros({40})};
        run(sources, destinations, op, 1);
        EXPECT_TRUE(destinations.front().isnan().all().item<bool>()) << number << ", " << at;
      }
    }
  }
}

// As "or" and "and".
TEST(Reduce, KnowsBools) {
  auto sources = sources_of(3, 100, at::kLong);
  for (at::Tensor& source : sources) source = source.gt(2);
  std::vector<at::Tensor> destinations{at::zeros({100}, at::kBool)};
  run(sources, destinations, ReduceOp::sum, 1);
  EXPECT_TRUE(at::equal(destinations.front(), sources[0] | sources[1] | sources[2]));
  run(sources, destinations, ReduceOp::product, 1);
  EXPECT_TRUE(at::equal(destinations.front(), sources[0] & sources[1] & sources[2]));
}

}  // namespace
}  // namespace lockstep
