// SPDX-License-Identifier: BSD-3-Clause
// Combines elements of every NCCL type, by every NCCL operator.
#include "nccl/stand_in_sums.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

template <class Element>
float as_float(Element value) {
  if constexpr (std::is_same_v<Element, __half>) {
    return __half2float(value);
  } else {
    return __bfloat162float(value);
  }
}
template <class Element>
Element from_float(float value) {
  if constexpr (std::is_same_v<Element, __half>) {
    return __float2half(value);
  } else {
    return __float2bfloat16(value);
  }
}

// Into the first. Each element is multiplied by the factor before it is added.
template <class Element>
void reduce(std::vector<Bytes>& inputs, std::size_t count, int op, double factor) {
  const auto ranks = static_cast<double>(inputs.size());
  constexpr bool kHalf = !std::is_arithmetic_v<Element>;
  using Sum = std::conditional_t<kHalf, float, Element>;
  const auto scaled = [&](std::size_t rank, std::size_t i) {
    Element value;
    std::memcpy(&value, inputs[rank].data() + i * sizeof value, sizeof value);
    Sum sum;
    if constexpr (kHalf) {
      sum = as_float(value);
    } else {
      sum = value;
    }
    return factor == 1 ? sum : static_cast<Sum>(sum * factor);
  };
  for (std::size_t i = 0; i < count; ++i) {
    Sum result = scaled(0, i);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      const Sum next = scaled(rank, i);
      if (op == ncclProd) {
        result = static_cast<Sum>(result * next);
      } else if (op == ncclMin) {
        result = std::min(result, next);
      } else if (op == ncclMax) {
        result = std::max(result, next);
      } else {
        result = static_cast<Sum>(result + next);
      }
    }
    if (op == ncclAvg) result = static_cast<Sum>(result * static_cast<Sum>(1.0 / ranks));
    Element stored;
    if constexpr (kHalf) {
      stored = from_float<Element>(result);
    } else {
      stored = result;
    }
    std::memcpy(inputs[0].data() + i * sizeof stored, &stored, sizeof stored);
  }
}

}  // namespace

std::size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

void reduce(std::vector<Bytes>& inputs, std::size_t count, ncclDataType_t type, int op,
            double factor) {
  switch (type) {
    case ncclInt8:
      return reduce<std::int8_t>(inputs, count, op, factor);
    case ncclUint8:
      return reduce<std::uint8_t>(inputs, count, op, factor);
    case ncclInt32:
      return reduce<std::int32_t>(inputs, count, op, factor);
    case ncclInt64:
      return reduce<std::int64_t>(inputs, count, op, factor);
    case ncclFloat16:
      return reduce<__half>(inputs, count, op, factor);
    case ncclBfloat16:
      return reduce<__nv_bfloat16>(inputs, count, op, factor);
    case ncclFloat32:
      return reduce<float>(inputs, count, op, factor);
    default:
      return reduce<double>(inputs, count, op, factor);
  }
}
