// SPDX-License-Identifier: BSD-3-Clause
// The names in messages of the functions that make collectives.
#include "lockstep/comm/types/call_origin.h"

namespace lockstep {
namespace {

thread_local constinit CallOrigin current_origin = CallOrigin::program;

}  // namespace

CallScope::CallScope(CallOrigin origin) : before_(current_origin) {
  if (before_ == CallOrigin::program) current_origin = origin;
}

CallScope::~CallScope() {
  current_origin = before_;
}

CallOrigin CallScope::current() {
  return current_origin;
}

std::string_view name(CallOrigin origin) {
  switch (origin) {
    case CallOrigin::program:
      return "";
    case CallOrigin::forward:
      return "a forward";
    case CallOrigin::backward:
      return "a backward";
    case CallOrigin::optimizer_step:
      return "an optimizer's step()";
    case CallOrigin::join:
      return "join()";
    case CallOrigin::wrapping:
      return "DistributedDataParallel()";
    case CallOrigin::making_optimizer:
      return "the making of an optimizer";
    case CallOrigin::optimizer_state:
      return "an optimizer's state";
    case CallOrigin::trainer:
      return "Trainer::fit()";
    case CallOrigin::accuracy:
      return "accuracy()";
    case CallOrigin::evaluate:
      return "evaluate()";
    case CallOrigin::share_buffers:
      return "share_buffers()";
    case CallOrigin::check_in_sync:
      return "check_in_sync()";
    case CallOrigin::clip_grad_norm:
      return "clip_grad_norm_()";
    case CallOrigin::broadcast_object:
      return "broadcast_object()";
    case CallOrigin::all_gather_object:
      return "all_gather_object()";
    case CallOrigin::mean_over_ranks:
      return "mean_over_ranks()";
    case CallOrigin::tree_all_reduce:
      return "tree_all_reduce()";
    case CallOrigin::clock_offset:
      return "clock_offset()";
    case CallOrigin::trace:
      return "Trace";
    case CallOrigin::open_checkpoints:
      return "CheckpointFolder()";
    case CallOrigin::load_checkpoint:
      return "CheckpointFolder::load()";
    case CallOrigin::save_checkpoint:
      return "CheckpointFolder::save()";
    case CallOrigin::wait_for_checkpoint:
      return "CheckpointFolder::wait()";
    case CallOrigin::standardization:
      return "the standardization";
    case CallOrigin::sync_batch_norm:
      return "SyncBatchNorm";
    case CallOrigin::functional:
      return "lockstep::functional";
    case CallOrigin::comm_hook:
      return "a communication hook";
    case CallOrigin::average_parameters:
      return "average_parameters()";
  }
  return "a function that this version does not know";
}

}  // namespace lockstep
