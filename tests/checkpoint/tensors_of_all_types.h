// SPDX-License-Identifier: BSD-3-Clause
// Tensors of each element type, and the comparison of tensors bit by bit.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep::testing {

// One tensor of shape [2, 3] for each type that safetensors and this libtorch have.
inline std::vector<NamedTensor> tensors_of_all_types() {
  const at::Tensor values = torch::tensor({0.0, 1.0, -1.5, 2.0, 0.25, -8.0}).reshape({2, 3});
  std::vector<NamedTensor> tensors{{"float64", values.to(torch::kDouble)},
                                   {"float32", values.to(torch::kFloat)},
                                   {"float16", values.to(torch::kHalf)},
                                   {"bfloat16", values.to(torch::kBFloat16)},
                                   {"int64", values.to(torch::kLong)},
                                   {"int32", values.to(torch::kInt)},
                                   {"int16", values.to(torch::kShort)},
                                   {"int8", values.to(torch::kChar)},
                                   {"uint8", values.abs().to(torch::kByte)},
                                   {"bool", values.to(torch::kBool)},
                                   {"complex64", values.to(torch::kComplexFloat)}};
  for (const char* name : {"uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
                           "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}) {
    if (const auto type = libtorch::later_type(name)) {
      tensors.push_back({name, values.abs().to(*type)});
    }
  }
  return tensors;
}

inline bool same_tensor(const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor a = left.detach().contiguous();
  const at::Tensor b = right.detach().contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

// Empty if they are the same; otherwise what differs first.
inline std::string difference(const std::vector<NamedTensor>& left,
                              const std::vector<NamedTensor>& right) {
  if (left.size() != right.size()) return "the number of tensors";
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i].name != right[i].name) return left[i].name + " or " + right[i].name;
    if (!same_tensor(left[i].tensor, right[i].tensor)) return left[i].name;
  }
  return "";
}

}  // namespace lockstep::testing
