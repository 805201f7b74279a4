// SPDX-License-Identifier: BSD-3-Clause
// Broadcasts or averages buffers in place.
#include "lockstep/train/share_buffers.h"

#include <unordered_set>
#include <vector>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/rendezvous/elastic_job.h"

namespace lockstep {
namespace {

// Returns each buffer once, with a version counter of its own: a graph that has saved a buffer must
// not report a change of its inputs.
std::vector<at::Tensor> writable_buffers(const torch::nn::Module& module) {
  std::vector<at::Tensor> buffers;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& buffer : module.buffers()) {
    if (!buffer.defined() || buffer.layout() != at::kStrided || buffer.is_meta()) continue;
    if (at::has_internal_overlap(buffer) == at::MemOverlap::Yes) continue;
    if (seen.insert(buffer.unsafeGetTensorImpl()).second) {
      buffers.push_back(buffer.variable_data());
    }
  }
  return buffers;
}

}  // namespace

void share_buffers(torch::nn::Module& module, GroupArgument argument, EvaluationBuffers which) {
  ProcessGroup& group = argument.get();
  if (group.size() == 1 || which == EvaluationBuffers::own) return;
  const CallScope scope(CallOrigin::share_buffers);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> of_rank_0;
  std::vector<at::Tensor> averaged;
  for (const at::Tensor& buffer : writable_buffers(module)) {
    const bool is_mean = which == EvaluationBuffers::mean && buffer.is_floating_point();
    (is_mean ? averaged : of_rank_0).push_back(buffer);
  }
  if (of_rank_0.empty() && averaged.empty()) return;
  const auto job = ElasticJob::of_this_process();
  if (job) job->note_waiting();
  if (!of_rank_0.empty()) group.broadcast(of_rank_0, 0).wait();
  if (!averaged.empty()) group.all_reduce(averaged, ReduceOp::mean).wait();
  if (job) job->note_going_on();
}

}  // namespace lockstep
