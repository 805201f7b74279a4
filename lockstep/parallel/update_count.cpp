// SPDX-License-Identifier: BSD-3-Clause
// Compares the counts, and hashes of the parameters.
#include "lockstep/parallel/update_count.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/parallel/tensor_hash.h"

namespace lockstep {

int UpdateCount::code() const {
  // The upper bits of a multiple of the golden ratio.
  return static_cast<int>((static_cast<std::uint64_t>(count()) * 0x9e37'79b9'7f4a'7c15) >> 61);
}

std::string UpdateCount::compare(ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  if (skipped_++ < skips_) return {};
  const at::Tensor hashes = at::empty({static_cast<std::int64_t>(parameters.size())}, at::kLong);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    hashes.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(tensor_hash(parameters[i]));
  }
  const at::Tensor mine = at::empty({2}, at::kLong);
  mine.data_ptr<std::int64_t>()[0] = count();
  mine.data_ptr<std::int64_t>()[1] = static_cast<std::int64_t>(tensor_hash(hashes));
  const at::Tensor all = at::empty({group.size(), 2}, at::kLong);
  group.all_gather_into_tensor(all, mine).wait();
  const at::Tensor models = all.select(1, 1);
  if (models.eq(models[0]).all().item<bool>()) {
    agreed_ = changes_;
    skipped_ = 0;
    skips_ = std::min(2 * skips_ + 1, 1023);
    return {};
  }
  int other = 0;
  const auto count_of = [&](int rank) { return all.data_ptr<std::int64_t>()[2 * rank]; };
  while (other + 1 < group.size() && count_of(other) == count()) ++other;
  return fmt::format(
      "the ranks are in different steps: their parameters differ, after {} in-place changes on "
      "this rank and {} on rank {}. Closures that ranks call differently often (LBFGS, a line "
      "search) are the usual cause: return the ranks' mean loss from them, "
      "functional::all_reduce(loss.detach(), group, ReduceOp::mean). Skip a step on all ranks or "
      "on none",
      count(), count_of(other), other);
}

}  // namespace lockstep
