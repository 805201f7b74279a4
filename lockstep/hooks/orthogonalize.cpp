// SPDX-License-Identifier: BSD-3-Clause
// Takes the part along earlier columns out of each column, then divides the rest by its norm.
#include "lockstep/hooks/orthogonalize.h"

#include <cmath>
#include <span>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

using Column = std::span<double>;

// A column of which so small a part is left depends on the earlier ones: the rest is the rounding
// error of doubles, which may have any direction. That of floats is larger, and orthogonal.
constexpr double kDependent = 1e-12;

double dot(Column a, Column b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void remove_part_along(Column direction, Column column) {
  const double length = dot(direction, column);
  for (std::size_t i = 0; i < column.size(); ++i) column[i] -= length * direction[i];
}

double norm(Column column) {
  return std::sqrt(dot(column, column));
}

void normalize(Column column, double norm_before, double epsilon) {
  const double left = norm(column);
  // Infinities and NaN stay.
  const bool dependent = std::isfinite(norm_before) && left <= kDependent * norm_before;
  for (double& element : column) element = dependent ? 0 : element / (left + epsilon);
}

}  // namespace

void orthogonalize(const at::Tensor& matrix, double epsilon) {
  const at::Tensor columns = matrix.to(at::kCPU, at::kDouble).t().contiguous();
  const auto length = static_cast<std::size_t>(columns.size(1));
  const auto column = [&](std::int64_t k) {
    return Column(columns.data_ptr<double>() + k * columns.size(1), length);
  };
  for (std::int64_t k = 0; k < columns.size(0); ++k) {
    const double norm_before = norm(column(k));
    // If little is left of a column, rounding errors are much of it; a second pass removes them.
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t before = 0; before < k; ++before) {
        remove_part_along(column(before), column(k));
      }
    }
    normalize(column(k), norm_before, epsilon);
  }
  matrix.copy_(columns.t());
}

}  // namespace lockstep
