// SPDX-License-Identifier: BSD-3-Clause
// Compares names, shapes and types, then values, a piece of a tensor at a time.
#include "tools/checkpoint/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/in_quotes.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

using DifferenceKind = TensorDifference::Kind;

std::string_view kind_name(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::missing:
      return "missing";
    case DifferenceKind::unexpected:
      return "unexpected";
    case DifferenceKind::shape:
      return "shape";
    case DifferenceKind::dtype:
      return "dtype";
    case DifferenceKind::values:
      return "values";
  }
  return "";
}

constexpr std::int64_t kSignBit = std::numeric_limits<std::int64_t>::min();

// Returns the same values in a type that every libtorch compares and subtracts exactly. A complex
// number becomes two values in a last dimension. Unsigned integers of 64 bits lose 2^63 each, which
// keeps their order and their differences.
at::Tensor comparable(const at::Tensor& tensor) {
  if (tensor.is_complex()) return at::view_as_real(tensor.to(at::kComplexDouble));
  if (tensor.is_floating_point()) return tensor.to(at::kDouble);
  if (tensor.element_size() == 8 && tensor.scalar_type() != at::kLong) {
    return tensor.view(at::kLong).bitwise_xor(kSignBit);
  }
  return tensor.to(at::kLong);
}

// Differences of integers are up to 2^64 - 1: they are computed modulo 2^64, and their largest is
// found in the order of unsigned numbers.
std::uint64_t largest_distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor distances = at::maximum(a, b) - at::minimum(a, b);
  const auto largest = distances.bitwise_xor(kSignBit).max().item<std::int64_t>();
  return static_cast<std::uint64_t>(largest ^ kSignBit);
}

// Adds the differences between two pieces of the same shape and type.
void compare_pieces(const at::Tensor& first, const at::Tensor& second,
                    TensorDifference& difference) {
  const at::Tensor a = comparable(first);
  const at::Tensor b = comparable(second);
  at::Tensor differ = a.ne(b);
  const bool integers = a.scalar_type() == at::kLong;
  if (!integers) differ = differ & ~(a.isnan() & b.isnan());
  const at::Tensor elements = first.is_complex() ? differ.any(-1) : differ;
  const auto count = elements.sum().item<std::int64_t>();
  if (count == 0) return;
  difference.differing += count;
  if (integers) {
    difference.largest_integer =
        std::max(difference.largest_integer.value_or(0), largest_distance(a, b));
    return;
  }
  // Where parts are equal, as two NaNs or infinities, their distance is 0.
  at::Tensor distances = (a - b).abs().masked_fill(~differ, 0);
  if (first.is_complex()) distances = at::hypot(distances.select(-1, 0), distances.select(-1, 1));
  const double largest = distances.max().item<double>();  // NaN if one is
  if (std::isnan(largest) || std::isnan(difference.largest)) {
    difference.largest = std::nan("");
  } else {
    difference.largest = std::max(difference.largest, largest);
  }
}

void compare_values(const at::Tensor& first, const at::Tensor& second,
                    TensorDifference& difference) {
  constexpr std::int64_t kPiece = 1 << 20;
  const at::Tensor a = in_index_order(first).view({-1});
  const at::Tensor b = in_index_order(second).view({-1});
  difference.elements = a.numel();
  for (std::int64_t done = 0; done < a.numel(); done += kPiece) {
    const std::int64_t size = std::min(kPiece, a.numel() - done);
    compare_pieces(a.narrow(0, done, size), b.narrow(0, done, size), difference);
  }
}

}  // namespace

std::vector<TensorDifference> differences(const TensorSource& first, const TensorSource& second) {
  std::vector<TensorDifference> found;
  for (std::size_t i = 0; i < first.names().size(); ++i) {
    const std::string& name = first.names()[i];
    const auto other = second.find(name);
    if (!other) {
      found.push_back({.name = name, .kind = DifferenceKind::missing, .first = {}, .second = {}});
      continue;
    }
    const auto shape = first.shape(i);
    const auto other_shape = second.shape(*other);
    if (shape != other_shape) {
      found.push_back({.name = name,
                       .kind = DifferenceKind::shape,
                       .first = shape_text(shape),
                       .second = shape_text(other_shape)});
    }
    const std::string dtype = first.dtype(i);
    const std::string other_dtype = second.dtype(*other);
    if (dtype != other_dtype) {
      found.push_back(
          {.name = name, .kind = DifferenceKind::dtype, .first = dtype, .second = other_dtype});
    }
    if (shape != other_shape || dtype != other_dtype) continue;
    // If this libtorch lacks the type, the bytes are compared.
    const at::Tensor a = first.read_or_bytes(i);
    const at::Tensor b = second.read_or_bytes(*other);
    TensorDifference values{
        .name = name, .kind = DifferenceKind::values, .first = {}, .second = {}};
    if (a.numel() != b.numel()) {  // bytes
      values.differing = values.elements = std::max(a.numel(), b.numel());
      found.push_back(values);
      continue;
    }
    if (a.numel() > 0) compare_values(a, b, values);
    if (values.differing > 0) found.push_back(values);
  }
  for (const std::string& name : second.names()) {
    if (first.find(name)) continue;
    found.push_back({.name = name, .kind = DifferenceKind::unexpected, .first = {}, .second = {}});
  }
  return found;
}

std::string difference_text(const std::vector<TensorDifference>& differences) {
  if (differences.empty()) return "the files have the same tensors\n";
  std::string text;
  for (const auto& difference : differences) {
    text += fmt::format("{} {}", kind_name(difference.kind), in_quotes(difference.name));
    if (!difference.first.empty()) {
      text += fmt::format(": {} and {}", difference.first, difference.second);
    } else if (difference.kind == DifferenceKind::values) {
      text += fmt::format(
          ": {} of {} elements differ, by at most {}", difference.differing, difference.elements,
          difference.largest_integer ? fmt::format("{}", *difference.largest_integer)
                                     : fmt::format("{:g}", difference.largest));
    }
    text += "\n";
  }
  return text;
}

std::string difference_json(const std::vector<TensorDifference>& differences) {
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"same", differences.empty()},
            {"differences", Json::array()}};
  for (const auto& difference : differences) {
    Json fields{{"name", difference.name}, {"kind", kind_name(difference.kind)}};
    if (!difference.first.empty()) {
      fields["first"] = difference.first;
      fields["second"] = difference.second;
    } else if (difference.kind == DifferenceKind::values) {
      fields["differing"] = difference.differing;
      fields["elements"] = difference.elements;
      fields["largest"] = difference.largest;  // null if it is not a number
      if (difference.largest_integer) fields["largest"] = *difference.largest_integer;
    }
    json["differences"].push_back(std::move(fields));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
