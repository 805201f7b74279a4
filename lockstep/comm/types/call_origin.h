// SPDX-License-Identifier: BSD-3-Clause
// Public. The function of the library that makes a collective, so that errors name what the program
// called.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// A new value needs a case in the switch of name().
enum class CallOrigin : std::uint8_t {
  // The program made the collective itself.
  program,
  // A part of a step of training: the number of steps may differ between ranks.
  forward,
  backward,
  optimizer_step,
  join,
  sync_batch_norm,
  functional,
  comm_hook,
  // The rest is called by all ranks at the same place of the program.
  wrapping,
  making_optimizer,
  optimizer_state,
  trainer,
  accuracy,
  evaluate,
  share_buffers,
  check_in_sync,
  clip_grad_norm,
  broadcast_object,
  all_gather_object,
  mean_over_ranks,
  tree_all_reduce,
  clock_offset,
  trace,
  open_checkpoints,
  load_checkpoint,
  save_checkpoint,
  wait_for_checkpoint,
  standardization,
  average_parameters,
};

// The name in messages: "accuracy()", "a forward". Empty for the program.
std::string_view name(CallOrigin origin);

// Whether it is part of a training step.
constexpr bool is_of_step(CallOrigin origin) {
  return origin >= CallOrigin::forward && origin <= CallOrigin::comm_hook;
}

// Collectives that this thread starts during the object's life have this origin, unless an earlier
// object still lives: the outermost function is the one that the program called.
class CallScope {
 public:
  explicit CallScope(CallOrigin origin);
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  ~CallScope();

  // The origin of the collectives that this thread starts now.
  static CallOrigin current();

 private:
  CallOrigin before_;
};

}  // namespace lockstep
