// SPDX-License-Identifier: BSD-3-Clause
// Finds the matrices in a bucket and factorizes them, with Gram-Schmidt orthogonalization in
// double.
#include "lockstep/hooks/low_rank_bucket.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

// The rows of a product that are computed at once, so that intermediate results stay in the cache.
constexpr std::int64_t kElementsAtOnce = 64 * 1024;

// The first dimension by all others, in the order of memory; undefined if the gradient is no
// matrix.
at::Tensor as_matrix(const at::Tensor& gradient) {
  if (gradient.is_complex() || gradient.dim() < 2 || gradient.numel() == 0) return {};
  std::vector<std::int64_t> order(static_cast<std::size_t>(gradient.dim()));
  std::iota(order.begin(), order.end(), 0);
  if (!gradient.is_contiguous()) {
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::int64_t dim) { return gradient.stride(dim); });
  }
  const at::Tensor ordered = gradient.permute(order);
  return ordered.is_contiguous() ? ordered.view({ordered.size(0), -1}) : at::Tensor();
}

bool of_half_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

at::Tensor for_products(const at::Tensor& matrix) {
  return of_half_type(matrix) ? matrix.to(at::kFloat) : matrix;
}

// At rank 1 a product of matrices would copy the large one first.
at::Tensor product(const at::Tensor& large, const at::Tensor& narrow) {
  if (narrow.size(1) > 1) return at::mm(large, narrow);
  return at::mv(large, narrow.select(1, 0)).unsqueeze(1);
}

// out = p q^T. Products and sums are rounded one by one, so that the bits do not depend on the
// processor or on the number of threads, as the bits of at::mm do.
void multiply(const at::Tensor& out, const at::Tensor& p, const at::Tensor& q) {
  const std::int64_t all_rows = out.size(0);
  const std::int64_t rows_at_once =
      out.is_cpu() ? std::max<std::int64_t>(1, kElementsAtOnce / out.size(1)) : all_rows;
  for (std::int64_t begin = 0; begin < all_rows; begin += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, all_rows - begin);
    const at::Tensor left = p.narrow(0, begin, rows);
    at::Tensor sum;
    for (std::int64_t k = 0; k < p.size(1); ++k) {
      const at::Tensor term = left.select(1, k).unsqueeze(1) * q.select(1, k).unsqueeze(0);
      sum = sum.defined() ? sum.add_(term) : term;
    }
    out.narrow(0, begin, rows).copy_(sum);
  }
}

// Whether p q^T is finite. It may have larger elements than the gradient that it stands for, and
// half has a small range.
bool product_is_finite(const at::Tensor& product, const at::Tensor& p, const at::Tensor& q) {
  const at::Tensor largest = (p.abs().amax(0) * q.abs().amax(0)).sum();
  const bool far_below_limit =
      largest.item<double>() < (product.scalar_type() == at::kHalf ? 32768 : 1e38);
  return far_below_limit || product.isfinite().all().item<bool>();
}

void draw_normal(const at::Tensor& numbers, const at::Generator& random) {
  const auto on_cpu = at::TensorOptions().dtype(numbers.scalar_type());
  numbers.copy_(at::randn(numbers.sizes(), random, on_cpu));
}

// A column of zeros in Q would stay so, since P = M Q and Q = M^T P. True if there was one.
bool draw_columns_of_zeros(const at::Tensor& q, const at::Generator& random) {
  const at::Tensor zero = q.eq(0).all(0).cpu();
  bool any = false;
  for (std::int64_t k = 0; k < q.size(1); ++k) {
    if (!zero[k].item<bool>()) continue;
    draw_normal(q.select(1, k), random);
    any = true;
  }
  return any;
}

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

LowRankBucket::LowRankBucket(const GradBucket& bucket, const PowerSGDState& options)
    : options_(options), buffer_(bucket.buffer()) {
  const std::vector<at::Tensor>& gradients = bucket.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor matrix = as_matrix(gradients[i]);
    if (matrix.defined()) add(matrix, bucket.trailer()[static_cast<std::int64_t>(i)]);
  }
  make_factors();
  find_rest();
}

at::TensorOptions LowRankBucket::type_of_factors() const {
  return buffer_.options().dtype(of_half_type(buffer_) ? at::kFloat : buffer_.scalar_type());
}

void LowRankBucket::add(const at::Tensor& gradient, const at::Tensor& used) {
  const std::int64_t n = gradient.size(0);
  const std::int64_t m = gradient.size(1);
  const std::int64_t rank =
      std::min({n, m, static_cast<std::int64_t>(options_.matrix_approximation_rank)});
  const auto of_factors = static_cast<double>((n + m) * rank);
  if (of_factors * options_.min_compression_rate >= static_cast<double>(n * m)) return;
  Matrix matrix{.gradient = gradient, .used = used, .rank = rank};
  if (options_.use_error_feedback) matrix.error = at::zeros({n, m}, type_of_factors());
  matrices_.push_back(matrix);
}

void LowRankBucket::make_factors() {
  std::int64_t of_p = 0;
  std::int64_t of_q = 0;
  for (const Matrix& matrix : matrices_) {
    of_p += matrix.gradient.size(0) * matrix.rank;
    of_q += matrix.gradient.size(1) * matrix.rank;
  }
  p_ = at::empty({of_p}, type_of_factors());
  q_ = at::empty({of_q}, type_of_factors());
  for (Matrix& matrix : matrices_) {
    const std::int64_t n = matrix.gradient.size(0);
    const std::int64_t m = matrix.gradient.size(1);
    of_p -= n * matrix.rank;
    of_q -= m * matrix.rank;
    matrix.p = p_.narrow(0, of_p, n * matrix.rank).view({n, matrix.rank});
    matrix.q = q_.narrow(0, of_q, m * matrix.rank).view({m, matrix.rank});
  }
}

// Other gradients, padding, and the trailer, which is last.
void LowRankBucket::find_rest() {
  std::map<std::int64_t, std::int64_t> compressed;  // the length of each matrix, by its offset
  for (const Matrix& matrix : matrices_) {
    compressed.emplace(matrix.gradient.storage_offset() - buffer_.storage_offset(),
                       matrix.gradient.numel());
  }
  std::int64_t end_of_last = 0;
  for (const auto& [begin, length] : compressed) {
    if (begin > end_of_last) {
      rest_parts_.push_back(buffer_.narrow(0, end_of_last, begin - end_of_last));
    }
    end_of_last = begin + length;
  }
  rest_parts_.push_back(buffer_.narrow(0, end_of_last, buffer_.numel() - end_of_last));
}

void LowRankBucket::begin(const at::Generator& random) {
  for (const Matrix& matrix : matrices_) {
    if (q_is_new_) draw_normal(matrix.q, random);
    orthogonalize(matrix.q, options_.orthogonalization_epsilon);
    // All ranks have the same Q, so they draw the same numbers.
    if (draw_columns_of_zeros(matrix.q, random)) {
      orthogonalize(matrix.q, options_.orthogonalization_epsilon);
    }
    if (matrix.error.defined()) {
      // Holds the sum until end(), since a half type would round it.
      matrix.error.add_(matrix.gradient);
    }
    const at::Tensor& values = matrix.error.defined() ? matrix.error : matrix.gradient;
    matrix.p.copy_(product(for_products(values), matrix.q));
  }
  rest_ = at::cat(rest_parts_);
}

void LowRankBucket::make_q() {
  std::int64_t begin = 0;
  for (const at::Tensor& part : rest_parts_) {
    part.copy_(rest_.narrow(0, begin, part.numel()));
    begin += part.numel();
  }
  rest_.reset();
  for (Matrix& matrix : matrices_) {
    matrix.left_out = matrix.used.eq(0).item<bool>();
    if (matrix.left_out) {
      // The gradient is one of an earlier step, and may not be finite.
      if (matrix.error.defined()) matrix.error.sub_(matrix.gradient).nan_to_num_(0, 0, 0);
      continue;
    }
    orthogonalize(matrix.p, options_.orthogonalization_epsilon);
    const at::Tensor& values = matrix.error.defined() ? matrix.error : matrix.gradient;
    matrix.q.copy_(product(for_products(values).t(), matrix.p));
  }
}

void LowRankBucket::end() {
  bool finite = q_.isfinite().all().item<bool>();
  for (const Matrix& matrix : matrices_) {
    if (matrix.left_out) continue;
    multiply(matrix.gradient, matrix.p, matrix.q);
    finite = finite && product_is_finite(matrix.gradient, matrix.p, matrix.q);
  }
  for (const Matrix& matrix : matrices_) {
    if (matrix.left_out || !matrix.error.defined()) continue;
    if (finite) {
      matrix.error.sub_(matrix.gradient);
    } else {
      matrix.error.zero_();
    }
  }
  q_is_new_ = !options_.warm_start || !finite;
}

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
