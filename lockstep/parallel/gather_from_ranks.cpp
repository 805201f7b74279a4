// SPDX-License-Identifier: BSD-3-Clause
// An all_gather of one tensor per rank.
#include "lockstep/parallel/gather_from_ranks.h"

#include <ATen/ATen.h>

namespace lockstep {

std::vector<at::Tensor> gather_from_ranks(ProcessGroup& group, const at::Tensor& mine) {
  const at::Tensor input = mine.to(group.device());
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < group.size(); ++rank) all.push_back(at::empty_like(input));
  group.all_gather(all, input).wait();
  for (at::Tensor& tensor : all) tensor = tensor.cpu();
  return all;
}

}  // namespace lockstep
