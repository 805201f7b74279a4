// SPDX-License-Identifier: BSD-3-Clause
// What survivors need to complete an update in which a rank was killed, where the ranks of a host
// have one copy of the parameters (one_copy.h). It lies in memory that all ranks map: the
// optimizer's state, a log of the blocks that are being changed, and which blocks are complete.
//
// A rank updates its parts of parameters in blocks, and these in chunks. Before it changes a chunk,
// it copies the old values and the old state into its log (undo_log.h); after a block it notes the
// number of the update. So each chunk is new, or old, or its old contents are in a log. The
// gradients, which all ranks map too, then give the new contents, with the same bits whoever
// computes them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/flat_parameters.h"
#include "lockstep/optim/kernels/undo_log.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::optim {

// How many elements are worth another thread.
constexpr std::int64_t kGrain = 32 * 1024;

// How many elements pass through average, update and store at a time: so few that they stay in the
// core's fastest cache.
constexpr std::int64_t kBlock = 2 * 1024;

// Parameters are counted as in FlatParameters. Updates are counted from 1. The state of a parameter
// has tensors of several kinds, such as the two averages of Adam, counted from 0.
class UpdateLog {
 public:
  // A part of a parameter, which one rank updates.
  struct Part {
    int owner;
    std::size_t number;  // of the parameter
    at::Tensor parameter;
    ElementRange range;
    std::vector<std::byte*> gradients;  // of the part, by rank
    at::Tensor values;                  // one dimension, in the memory of all ranks
    std::vector<at::Tensor> state;      // likewise, by kind
    std::int64_t first_block;           // blocks are counted over all parts
  };

  // The state of a parameter before and after an update, and whether the update changes it.
  struct Note {
    std::int64_t steps_before = 0;
    // Bit i: the state has a tensor of kind i.
    std::uint32_t kinds_before = 0;
    std::uint32_t kinds_after = 0;
    std::uint32_t is_updated = 0;
  };

  // Updates the elements of a part from begin to end, with the log. `gradient` points to that of
  // element `begin`.
  using UpdateBlock = c10::function_ref<void(std::int64_t begin, std::int64_t end,
                                             const void* gradient, const UndoLog* log)>;

  // Collective. All buckets of `flat` have one copy. `kinds`: the most that a state may have.
  // BackendError on every rank if there is not enough memory.
  UpdateLog(ProcessGroup& group, const FlatParameters& flat, int kinds);

  // Collective if there is no memory yet for so many kinds. New memory is zeroed.
  void reserve_state(int kinds);

  // The parts that the rank updates.
  std::vector<Part>& parts(int rank) { return parts_[static_cast<std::size_t>(rank)]; }
  // The whole parameter in the memory of all ranks, in its shape.
  const at::Tensor& values(std::size_t number) const { return values_[number]; }
  // A tensor of its state, likewise. It keeps the memory, and has_one_copy() knows it.
  at::Tensor state(std::size_t number, int kind) const;

  // Notes of an update are kept until that of the update after the next. The owner of the first
  // element of a parameter writes its note, before the ranks meet to begin the update.
  void set_note(std::int64_t update, std::size_t number, const Note& note);
  Note note(std::int64_t update, std::size_t number) const;

  // From now on this rank changes blocks, in this update.
  void begin(std::int64_t update);
  // The last update in which any rank has begun to change blocks; 0 if there is none.
  std::int64_t last_begun() const;

  // Updates the blocks of the part that are not complete in this update, on several threads if
  // there are many. `averages`: the gradient is the mean over the ranks, which becomes the owner's;
  // otherwise it is the owner's already. One call at a time.
  // `kinds`: how many tensors of the state it changes, from the first.
  void update(const Part& part, bool averages, int kinds, UpdateBlock update);

  // For survivors, once nobody changes a block any more. Updates of this number can be completed by
  // update() of all parts.
  void resume(std::int64_t update) { update_ = update; }
  // Whether all blocks of the part are complete in this update.
  bool is_complete(const Part& part) const;
  // One of them restores the blocks that were being changed from the logs. Can be repeated, by
  // another survivor too.
  void restore_blocks();

 private:
  struct Slot;

  Slot& slot(std::int64_t index) const;
  std::int64_t new_chunks(std::int64_t block) const;
  void set_new_chunks(std::int64_t block, std::int64_t chunks);
  void update_blocks(const Part& part, std::int64_t first, std::int64_t last, Slot& slot,
                     bool averages, UpdateBlock update);
  void restore_chunk(Slot& slot, std::int64_t position);

  ProcessGroup& group_;
  std::int64_t update_ = 0;
  std::vector<at::Tensor> values_;
  std::vector<std::vector<Part>> parts_;     // by owner
  std::vector<std::int64_t> state_offsets_;  // of each parameter, in bytes, and the total
  std::vector<at::Tensor> state_;            // by kind

  // The mapped memory, and what lies in it.
  std::int64_t slots_;         // of each rank: one for each thread
  std::int64_t buffer_bytes_;  // for a chunk; a slot has two
  std::int64_t slot_bytes_;
  at::Tensor memory_;
  std::atomic<std::int64_t>* begun_;     // by rank
  Note* notes_;                          // of two updates
  std::atomic<std::int64_t>* progress_;  // of each block: the update, and its chunks that are new
  std::byte* first_slot_;
};

}  // namespace lockstep::optim
