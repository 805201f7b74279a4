// SPDX-License-Identifier: BSD-3-Clause
// Inputs of the conformance suite, and reference reductions of them.
#include "comm/conformance/reference.h"

#include <cstring>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace lockstep::testing {

const std::vector<at::ScalarType>& all_types() {
  static const std::vector<at::ScalarType> types = {
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kBool};
  return types;
}

bool can_be_scaled(at::ScalarType type) {
  return at::isFloatingType(type);
}

at::Tensor input_of(int rank, at::ScalarType type, at::IntArrayRef sizes, int seed) {
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(1000 * seed + rank + 1));
  if (type == at::kBool) return at::randint(0, 2, sizes, generator, at::kByte).to(at::kBool);
  // Up to 3: small enough for a product of bytes.
  if (!at::isFloatingType(type)) return at::randint(1, 4, sizes, generator, type);
  const at::Tensor wide = at::empty(sizes, at::kDouble).uniform_(-2, 2, generator);
  return wide.to(type);
}

std::vector<at::Tensor> inputs_of_all(int ranks, at::ScalarType type, at::IntArrayRef sizes,
                                      int seed) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, type, sizes, seed));
  return inputs;
}

namespace {

at::Tensor combined(ReduceOp op, const at::Tensor& left, const at::Tensor& right) {
  const bool bools = left.scalar_type() == at::kBool;
  switch (op) {
    case ReduceOp::min:
      return at::minimum(left, right);
    case ReduceOp::max:
      return at::maximum(left, right);
    case ReduceOp::product:
      return bools ? at::logical_and(left, right) : at::mul(left, right);
    case ReduceOp::sum:
    case ReduceOp::mean:
      break;
  }
  return bools ? at::logical_or(left, right) : at::add(left, right);
}

}  // namespace

at::Tensor reduced(const std::vector<at::Tensor>& inputs, const AllReduceOptions& options) {
  const at::ScalarType type = inputs.front().scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const at::ScalarType wide = half ? at::kFloat : type;
  at::Tensor result = inputs.front().to(wide, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    result = combined(options.op, result, inputs[rank].to(wide));
  }
  double scale = options.scale;
  if (options.op == ReduceOp::mean) scale /= static_cast<double>(inputs.size());
  if (scale != 1) result = at::mul(result, scale);
  return result.to(type);
}

void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected,
                      const std::string& what) {
  if (actual.scalar_type() != expected.scalar_type() || actual.sizes() != expected.sizes()) {
    std::ostringstream shapes;
    shapes << actual.scalar_type() << actual.sizes() << " instead of " << expected.scalar_type()
           << expected.sizes();
    ADD_FAILURE() << what << ": " << shapes.str();
    return;
  }
  const at::Tensor left = actual.detach().cpu().contiguous();
  const at::Tensor right = expected.detach().cpu().contiguous();
  const std::size_t width = left.element_size();
  const auto* left_bytes = static_cast<const char*>(left.data_ptr());
  const auto* right_bytes = static_cast<const char*>(right.data_ptr());
  if (left.nbytes() == 0 || std::memcmp(left_bytes, right_bytes, left.nbytes()) == 0) return;
  std::int64_t wrong = 0;
  std::int64_t first = -1;
  for (std::int64_t i = 0; i < left.numel(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * width;
    if (std::memcmp(left_bytes + at, right_bytes + at, width) == 0) continue;
    if (wrong++ == 0) first = i;
  }
  ADD_FAILURE() << what << ": " << wrong << " of " << left.numel()
                << " elements differ, the first [" << first << "] is "
                << left.flatten()[first].item() << " instead of " << right.flatten()[first].item();
}

}  // namespace lockstep::testing
