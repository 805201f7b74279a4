// SPDX-License-Identifier: BSD-3-Clause
// Adds with the collectives' kernels, split among the workers, or with at::add.
#include "lockstep/parallel/gradient_sum.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include <ATen/ATen.h>

#include "lockstep/tensor/device_copies.h"
#include "lockstep/tensor/kernels/reduce.h"

namespace lockstep {
namespace {

using Terms = std::vector<at::Tensor>;

bool fits_kernel(const Terms& terms) {
  const at::Tensor& first = terms.front();
  return std::all_of(terms.begin(), terms.end(), [&](const at::Tensor& term) {
    return term.layout() == at::kStrided && term.is_cpu() &&
           can_reduce(term.scalar_type(), ReduceOp::sum) &&
           term.scalar_type() == first.scalar_type() && term.sizes() == first.sizes() &&
           !is_lazy(term);
  });
}

at::Tensor sum_in_turn(const Terms& terms) {
  at::Tensor sum = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) sum = at::add(sum, terms[i]);
  return sum;
}

// Whether nobody else can see the memory; autograd itself checks the same before it takes over a
// gradient. One tensor may be the gradient of two parameters.
bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// One sum, whose tensors all have the same memory layout.
struct Sum {
  at::Tensor result;
  Terms terms;

  explicit Sum(Terms&& given) : terms(std::move(given)) {
    at::Tensor& first = terms.front();
    if (!first.is_non_overlapping_and_dense()) first = first.contiguous();
    result = is_sole_owner(first) ? first : at::empty_like(first);
    for (at::Tensor& term : terms) {
      if (term.strides() == first.strides()) continue;
      term = at::empty_strided(first.sizes(), first.strides(), first.options()).copy_(term);
    }
  }

  void add_up(std::int64_t begin, std::int64_t end) const {
    const auto offset = begin * static_cast<std::int64_t>(result.element_size());
    std::vector<const void*> sources;
    for (const at::Tensor& term : terms) {
      sources.push_back(static_cast<const char*>(term.data_ptr()) + offset);
    }
    const std::array<void*, 1> destination{static_cast<char*>(result.data_ptr()) + offset};
    reduce(sources, destination, end - begin, result.scalar_type(), ReduceOp::sum, 1);
  }
};

// Adds the elements from begin to end, counted through all sums one after another.
void add_up(const std::vector<Sum>& sums, std::int64_t begin, std::int64_t end) {
  std::int64_t start = 0;
  for (const Sum& sum : sums) {
    const std::int64_t stop = start + sum.result.numel();
    const std::int64_t from = std::max(begin, start);
    const std::int64_t to = std::min(end, stop);
    if (from < to) sum.add_up(from - start, to - start);
    start = stop;
  }
}

}  // namespace

std::vector<at::Tensor> sum_gradients(std::vector<Terms> terms, ReplicaWorkers& workers,
                                      int count) {
  std::vector<at::Tensor> results(terms.size());
  std::vector<Sum> sums;
  std::vector<std::size_t> indices;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    if (terms[i].empty()) continue;
    if (terms[i].size() == 1) {
      results[i] = std::move(terms[i].front());
    } else if (fits_kernel(terms[i])) {
      sums.emplace_back(std::move(terms[i]));
      indices.push_back(i);
      elements += sums.back().result.numel();
    } else {
      results[i] = sum_in_turn(terms[i]);
    }
  }
  // For fewer elements, waking a thread takes longer than adding its part.
  constexpr std::int64_t kWorthSharing = 32 * 1024;
  if (elements < kWorthSharing) {
    add_up(sums, 0, elements);
  } else {
    workers.run("the gradient sum", count, [&](int part) {
      add_up(sums, elements * part / count, elements * (part + 1) / count);
    });
  }
  for (std::size_t i = 0; i < sums.size(); ++i) results[indices[i]] = std::move(sums[i].result);
  return results;
}

}  // namespace lockstep
